-- Moves a dead letter back to its origin, and records it.
-- KEYS[1] the dead-letter queue's list, KEYS[2] the origin's list, KEYS[3] outcome log.
-- ARGV[1] the dead letter as it lies there, ARGV[2] the message that goes back, ARGV[3..18] event.
-- Returns 'done', or 'already' where the letter is no longer there. Bound: one message; it is looked for from the oldest on.
-- uses: append
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 'already' end
redis.call('LPUSH', KEYS[2], ARGV[2])
append(KEYS[3], 3)
return 'done'
