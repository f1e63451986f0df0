-- Moves the delayed messages that are due to their lists, the earliest first.
-- KEYS[1] delayed (destinations), KEYS[2] delayed:tasks, then for each destination: due, messages, list.
-- ARGV[1] how many messages at most for each destination, ARGV[2] separator, ARGV[3..] the names of the destinations.
-- Returns {moved, missing, milliseconds until the next one is due or -1}. `missing` counts ids whose message was not there.
-- Bound: ARGV[1] messages for each destination.
-- uses: clock
local now, limit, moved, missing = now_ms(), tonumber(ARGV[1]), 0, 0
for d = 3, #ARGV do
  local due, messages, list = KEYS[3 * d - 6], KEYS[3 * d - 5], KEYS[3 * d - 4]
  local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
  if #ids > 0 then
    local found, tasks = {}, {}
    for i, raw in ipairs(redis.call('HMGET', messages, unpack(ids))) do
      if raw then found[#found + 1] = raw else missing = missing + 1 end
      tasks[i] = ids[i] .. ARGV[2] .. ARGV[d]
    end
    redis.call('HDEL', messages, unpack(ids))
    redis.call('ZREM', due, unpack(ids))
    redis.call('ZREM', KEYS[2], unpack(tasks))
    if #found > 0 then redis.call('LPUSH', list, unpack(found)) end
    moved = moved + #found
  end
  local next_due = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  if next_due then redis.call('ZADD', KEYS[1], next_due, ARGV[d]) else redis.call('ZREM', KEYS[1], ARGV[d]) end
end
local earliest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {moved, missing, earliest and math.max(tonumber(earliest) - now, 0) or -1}
