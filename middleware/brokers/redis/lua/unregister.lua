-- Forgets an owner that no longer holds messages.
-- KEYS[1] leases, KEYS[2] owners, KEYS[3] received:<token>, KEYS[4] recovering. ARGV[1] token.
-- Returns 1. All writes free memory, so that a worker can stop on a full server. Bound: constant.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[4], ARGV[1])
return 1
