-- Ends a message that a worker holds, and records how; the result of its task, where there is one, is stored first.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3..23] event, or nothing where nothing is to be recorded, ARGV[24..28] as `result.lua` has it.
-- Returns 'done', 'already' or 'refused'. Bound: one message.
-- Checked: it is recorded before it is ended, so that a log which refuses the event, or a key which refuses the result, leaves the
-- message held.
-- uses: append take result
local refusal = why_not()
if refusal then return refusal end
if ARGV[24] then store_result(24) end
if ARGV[3] then append(KEYS[5], 3) end
let_go()
return 'done'
