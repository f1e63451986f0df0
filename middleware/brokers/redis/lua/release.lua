-- Puts messages that an owner holds, and has not run, back to where they were taken from, unchanged and uncounted.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4..] one list for each message.
-- ARGV: for each message, its tag and its bytes; the last received message first.
-- Returns {how many went back, the first error or ''}. Messages that are no longer held are left out.
-- Bound: the caller's batch.
-- Checked: a message that its list refuses stays held, and the others go on.
redis.call('HDEL', KEYS[1], '') -- removes nothing; it fails if the removals below would fail
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
