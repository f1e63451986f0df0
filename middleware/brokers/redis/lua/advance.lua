-- Makes all messages in the delay store due earlier, as if time had passed (`redelivery.testing`).
-- KEYS[1] delayed (destinations), then for each destination: due, messages.
-- ARGV[1] by how many ms, ARGV[2] the most messages of a destination, ARGV[3] the number of destinations; then their names; then
-- for each message to replace: the number of its destination, its id, the new message.
-- Returns how many messages there were, or -1 if a destination has more than ARGV[2]: then nothing has changed.
-- Bound: ARGV[2] messages for each destination.
local ms, limit, count, moved = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), 0
for d = 1, count do
  if redis.call('ZCARD', KEYS[2 * d]) > limit then return -1 end
end
for d = 1, count do
  local due = KEYS[2 * d]
  local found = redis.call('ZRANGE', due, 0, -1, 'WITHSCORES')
  for i = 1, #found, 2 do
    redis.call('ZADD', due, string.format('%.0f', tonumber(found[i + 1]) - ms), found[i])
    moved = moved + 1
  end
  if #found > 0 then redis.call('ZADD', KEYS[1], string.format('%.0f', tonumber(found[2]) - ms), ARGV[3 + d]) end
end
for i = 4 + count, #ARGV, 3 do
  local messages = KEYS[2 * tonumber(ARGV[i]) + 1]
  if redis.call('HEXISTS', messages, ARGV[i + 1]) == 1 then redis.call('HSET', messages, ARGV[i + 1], ARGV[i + 2]) end
end
return moved
