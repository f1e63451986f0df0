-- Renews an owner's lease.
-- KEYS[1] leases. ARGV[1] token.
-- Returns the new counter, or 0 where the lease is gone: the owner is fenced. Bound: constant.
-- On a full server a script whose first write frees is let through, so that a worker which empties it keeps its lease.
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], counter + 1)
return counter + 1
