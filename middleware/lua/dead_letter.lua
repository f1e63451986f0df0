-- Moves a message that a worker holds to a dead-letter queue, and records it.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log,
-- KEYS[6] the dead-letter queue's list, KEYS[7] dead_letter_queues.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] message, ARGV[4] name of the dead-letter queue, ARGV[5] origin queue,
-- ARGV[6..21] event.
-- Returns 'done', 'already' or 'refused'. Bound: one message.
-- uses: append take
local why_not = take()
if why_not then return why_not end
redis.call('LPUSH', KEYS[6], ARGV[3])
redis.call('HSET', KEYS[7], ARGV[4], ARGV[5])
append(KEYS[5], 6)
return 'done'
