-- Moves the delayed messages that are due to their lists, the earliest first.
-- KEYS[1] delayed (destinations), KEYS[2] delayed:tasks, then for each destination: due, messages, list.
-- ARGV[1] the most messages for each destination, ARGV[2] separator, ARGV[3..] the names of the destinations.
-- Returns {moved, missing (ids without a message), milliseconds until the next is due or -1, the first error or ''}.
-- Bound: ARGV[1] messages for each destination.
-- Checked: messages are added to their list before they leave the delay store. If a destination refuses them (its list has another
-- type, for example), its messages wait for a second, and the other destinations go on.
-- uses: clock
local now, limit, moved, missing, refused = now_ms(), tonumber(ARGV[1]), 0, 0, ''

local function move(name, due, messages, list)
  redis.call('LLEN', list)
  redis.call('HDEL', messages, '') -- removes nothing; it fails if the removal below would fail
  local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
  if #ids == 0 then return end
  local found, tasks, absent = {}, {}, 0
  for i, raw in ipairs(redis.call('HMGET', messages, unpack(ids))) do
    if raw then found[#found + 1] = raw else absent = absent + 1 end
    tasks[i] = ids[i] .. ARGV[2] .. name
  end
  -- The first write frees memory: after it, a full server accepts the others.
  redis.call('ZREM', KEYS[2], unpack(tasks))
  if #found > 0 then
    local pushed = redis.pcall('LPUSH', list, unpack(found))
    if type(pushed) == 'table' then
      for i = 1, #tasks do redis.call('ZADD', KEYS[2], 0, tasks[i]) end
      error(pushed)
    end
  end
  redis.call('HDEL', messages, unpack(ids))
  redis.call('ZREM', due, unpack(ids))
  moved, missing = moved + #found, missing + absent
end

-- This removes nothing, but it counts as freeing memory: after it, a full server accepts the ZADDs below.
redis.pcall('ZREM', KEYS[1], '')
for d = 3, #ARGV do
  local due = KEYS[3 * d - 6]
  local is_moved, err = pcall(move, ARGV[d], due, KEYS[3 * d - 5], KEYS[3 * d - 4])
  if not is_moved then
    if refused == '' then refused = ARGV[d] .. ': ' .. (type(err) == 'table' and err.err or tostring(err)) end
    redis.call('ZADD', KEYS[1], now + 1000, ARGV[d])
  else
    local next_due = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
    if next_due then redis.call('ZADD', KEYS[1], next_due, ARGV[d]) else redis.call('ZREM', KEYS[1], ARGV[d]) end
  end
end
local earliest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {moved, missing, earliest and math.max(tonumber(earliest) - now, 0) or -1, refused}
