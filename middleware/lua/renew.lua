-- Renews an owner's lease.
-- KEYS[1] leases. ARGV[1] token.
-- Returns the new counter, or 0 where the lease is gone: the owner is fenced. Bound: constant.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
