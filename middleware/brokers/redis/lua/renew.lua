-- Renews an owner's lease, and reports which of the fleet's shared duties have no worker.
-- KEYS[1] leases, KEYS[2] and KEYS[3] lease_watcher, KEYS[4] recovering, KEYS[5] dispatcher, KEYS[6] operations:open,
-- KEYS[7] operator.
-- ARGV[1] token, ARGV[2] for how many ms the owner offers to watch all leases, or 0. Two owners watch at a time.
-- Returns {0} if the lease is gone: the owner is fenced. Otherwise {1, the number of leases, whether the owner watches, whether an
-- owner must be recovered, whether there is no dispatcher, whether there are open operations and no process that carries them out}.
-- Bound: constant.
-- The lease is renewed even if another key that is read here has the wrong type.
-- The first write frees memory, so that a worker that empties a full server keeps its lease.
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return {0} end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], counter + 1)
local watches, place = 0, nil
if tonumber(ARGV[2]) > 0 then
  for slot = 2, 3 do
    local watcher = redis.pcall('GET', KEYS[slot])
    if type(watcher) == 'table' then
      watches = 1
    elseif watcher == ARGV[1] or not (watcher or place) then
      place = KEYS[slot]
      if watcher then break end
    end
  end
end
if place then
  redis.call('SET', place, ARGV[1], 'PX', ARGV[2])
  watches = 1
end
local function exists(...) return redis.call('EXISTS', ...) end
local leases, undispatched = redis.call('HLEN', KEYS[1]), 1 - exists(KEYS[5])
if exists(KEYS[4], KEYS[6]) == 0 then return {1, leases, watches, 0, undispatched, 0} end
return {1, leases, watches, exists(KEYS[4]), undispatched, exists(KEYS[6]) * (1 - exists(KEYS[7]))}
