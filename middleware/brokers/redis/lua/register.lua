-- Opens a lease. The first write frees memory, so that a worker can connect to a full server and empty it.
-- KEYS[1] leases, KEYS[2] owners, KEYS[3] recovering. ARGV[1] token, ARGV[2] JSON about the owner, ARGV[3] its lost token, or ''.
-- Returns 1. Bound: constant.
-- Checked before the lease begins: the type of `owners`.
-- A lost token that is not recovered yet is noted in `recovering`: if the leases were deleted, no worker has fenced it.
-- uses: clock
redis.call('HLEN', KEYS[2])
local was_lost = redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 and redis.pcall('HEXISTS', KEYS[3], ARGV[3]) == 0
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], 0)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if was_lost then redis.call('HSET', KEYS[3], ARGV[3], now_ms()) end
return 1
