-- Removes a dead letter for good, and records it.
-- KEYS[1] the dead-letter queue's list, KEYS[2] outcome log; where an operation removes it, KEYS[3] that.
-- ARGV[1] the dead letter as it lies there, ARGV[2..22] event, ARGV[23] only while the queue is longer than this, or nothing; of an operation, three others (see operated).
-- Returns 'done', 'already' where the letter is no longer there or the queue is no longer than that, or 'refused' where its operation may not go on. Bound: one message; it is looked for from the oldest on.
-- Checked: the type of the log, before the letter is taken; where the log refuses the event, the letter goes back, as the oldest.
-- uses: append attempt operated
if is_halted(KEYS[3]) then return 'refused' end
redis.call('XLEN', KEYS[2])
if ARGV[23] and not KEYS[3] and redis.call('LLEN', KEYS[1]) <= tonumber(ARGV[23]) then return 'already' end
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 'already' end
local counted
local err = attempt(
  function()
    counted = true
    count(KEYS[3], nil, 1)
    append(KEYS[2], 2)
  end,
  function()
    redis.call('RPUSH', KEYS[1], ARGV[1])
    if counted then count(KEYS[3], nil, -1) end
  end)
return err or 'done'
