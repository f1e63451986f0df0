-- Records that a message which a crash has touched is about to run, so that a second crash is counted against it.
-- KEYS[1] unacked, KEYS[2] starts. ARGV[1] tag.
-- Returns 'done', or 'refused' where the message is no longer held under this tag. Bound: one message.
-- uses: clock
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'refused' end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], now_ms())
return 'done'
