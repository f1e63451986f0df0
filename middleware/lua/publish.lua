-- Publishes a message and records it, both or neither.
-- KEYS[1] outcome log, KEYS[2] the list, KEYS[3..] all lists of the queue (only where it expires).
-- ARGV[1] message, ARGV[2] queue expiry in ms or '', ARGV[3..18] event.
-- Returns the length of the list. Bound: one message, at most ten lists.
-- uses: append
local length = redis.call('LPUSH', KEYS[2], ARGV[1])
if ARGV[2] ~= '' then
  for i = 3, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
end
append(KEYS[1], 3)
return length
