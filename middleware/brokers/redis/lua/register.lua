-- Opens a lease. A worker that will empty a full server must be able to connect, so the first write frees memory.
-- KEYS[1] leases, KEYS[2] owners. ARGV[1] token, ARGV[2] JSON about the owner.
-- Returns 1. Bound: constant.
-- Checked: that the owner can be stored, before its lease begins.
redis.call('HLEN', KEYS[2])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], 0)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
