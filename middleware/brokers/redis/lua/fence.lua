-- Ends the lease of an owner that has not renewed it. From here on its messages are given back, one by one; a transition of a
-- message that was given back is refused.
-- KEYS[1] leases, KEYS[2] recovering. ARGV[1] token, ARGV[2] the counter that did not move.
-- Returns 1, or 0 if the counter moved after all, or the lease is gone already. Bound: constant.
-- uses: clock
-- Checked: that the token can be noted in `recovering`, before its lease ends.
redis.call('HLEN', KEYS[2])
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], now_ms())
return 1
