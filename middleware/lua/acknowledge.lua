-- Ends a message that a worker holds, and records how.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3..18] event, or nothing where nothing is to be recorded.
-- Returns 'done', 'already' or 'refused'. Bound: one message.
-- uses: append take
local why_not = take()
if why_not then return why_not end
if ARGV[3] then append(KEYS[5], 3) end
return 'done'
