-- Moves a dead letter back to its origin, and records it.
-- KEYS[1] the dead-letter queue's list, KEYS[2] the origin's list, KEYS[3] outcome log.
-- ARGV[1] the dead letter as it lies there, ARGV[2] the message that goes back, ARGV[3..18] event.
-- Returns 'done', or 'already' where the letter is no longer there. Bound: one message; it is looked for from the oldest on.
-- Checked: the types of the origin and of the log, before the letter is taken; what fails then puts it back, as the oldest.
-- uses: append attempt
redis.call('LLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 'already' end
local pushed
local err = attempt(
  function()
    pushed = redis.call('LPUSH', KEYS[2], ARGV[2])
    append(KEYS[3], 3)
  end,
  function()
    if pushed then redis.call('LPOP', KEYS[2]) end
    redis.call('RPUSH', KEYS[1], ARGV[1])
  end)
return err or 'done'
