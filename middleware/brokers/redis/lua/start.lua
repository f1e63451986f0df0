-- Records that a suspect is about to run, so that another crash counts against it.
-- With a mark, records that the message was acknowledged before it runs (`acks_late=False`): after a crash it must not run again.
-- KEYS[1] unacked, KEYS[2] starts. ARGV[1] tag, ARGV[2] mark or ''.
-- Returns 'done', or 'refused' if the message is no longer held under this tag. Bound: one message.
-- uses: clock
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'refused' end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] ~= '' and ARGV[2] or now_ms())
return 'done'
