-- Puts messages that an owner holds, and has not run, back to where they were taken from, unchanged and uncounted.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4..] one list for each message.
-- ARGV: tag and raw message, for each message, the last received message first.
-- Returns {how many went back, the error of the first that could not, or ''}; messages that are no longer held stay where they are.
-- Bound: the caller's batch.
-- Checked: each message is in its list before it is let go; if the list refuses it, it stays held, and the others go on.
redis.call('HDEL', KEYS[1], '') -- removes nothing: it fails before anything is put back if the messages could not be let go
local released, refused = 0, ''
for i = 4, #KEYS do
  local tag = ARGV[2 * i - 7]
  if redis.call('HEXISTS', KEYS[1], tag) == 1 then
    redis.call('ZREM', KEYS[2], tag)
    local pushed = redis.pcall('RPUSH', KEYS[i], ARGV[2 * i - 6])
    if type(pushed) == 'table' then
      if refused == '' then refused = pushed.err end
    else
      redis.call('HDEL', KEYS[1], tag)
      redis.pcall('HDEL', KEYS[3], tag)
      released = released + 1
    end
  end
end
return {released, refused}
