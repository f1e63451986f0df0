-- Publishes a message and records it, both or neither.
-- KEYS[1] outcome log, KEYS[2] the list, KEYS[3..] all lists of the queue (only if the queue expires).
-- ARGV[1] message, ARGV[2] queue expiry in ms or '', ARGV[3..23] event, ARGV[24] gaps for times (see `dated.lua`), or ''.
-- Returns the length of the list. Bound: one message, at most ten lists.
-- Checked: if the log refuses the event, the push is taken back, so that a publisher that tries again publishes once.
-- uses: append clock dated
local length = redis.call('LPUSH', KEYS[2], dated(ARGV[1], ARGV[24]))
local added, err = pcall(append, KEYS[1], 3)
if added and ARGV[2] ~= '' then
  for i = 3, #KEYS do redis.pcall('PEXPIRE', KEYS[i], ARGV[2]) end
end
if added then return length end
redis.call('LPOP', KEYS[2])
return type(err) == 'table' and err or redis.error_reply(tostring(err))
