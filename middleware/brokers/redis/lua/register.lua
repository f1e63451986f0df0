-- Opens a lease. A worker that will empty a full server must be able to connect, so the first write frees memory.
-- KEYS[1] leases, KEYS[2] owners, KEYS[3] recovering. ARGV[1] token, ARGV[2] JSON about the owner, ARGV[3] the token that it lost,
-- or ''.
-- Returns 1. Bound: constant.
-- Checked: that the owner can be stored, before its lease begins.
-- A lost token that nobody has recovered is noted in `recovering`: if the leases were deleted, nobody has fenced it.
-- uses: clock
redis.call('HLEN', KEYS[2])
local was_lost = redis.call('HEXISTS', KEYS[2], ARGV[3]) == 1 and redis.pcall('HEXISTS', KEYS[3], ARGV[3]) == 0
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], 0)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if was_lost then redis.call('HSET', KEYS[3], ARGV[3], now_ms()) end
return 1
