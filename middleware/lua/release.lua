-- Puts messages that an owner holds, and has not run, back to where they were taken from, as they were: uncounted.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3..] one list for each message.
-- ARGV: tag and raw message, for each message, the one that was received last first.
-- Returns how many went back; what is no longer held stays where it is. Bound: the caller's batch.
local released = 0
for i = 3, #KEYS do
  local tag = ARGV[2 * i - 5]
  if redis.call('HDEL', KEYS[1], tag) == 1 then
    redis.call('ZREM', KEYS[2], tag)
    redis.call('RPUSH', KEYS[i], ARGV[2 * i - 4])
    released = released + 1
  end
end
return released
