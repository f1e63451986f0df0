-- Ends the lease of an owner that has not renewed it. Then its messages can be given back, one by one; the owner's transitions of
-- those messages are refused.
-- KEYS[1] leases, KEYS[2] recovering. ARGV[1] token, ARGV[2] the counter that did not move.
-- Returns 1, or 0 if the counter has moved, or the lease is gone. Bound: constant.
-- uses: clock
-- Checked before the lease ends: the type of `recovering`, where the token is noted.
redis.call('HLEN', KEYS[2])
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], now_ms())
return 1
