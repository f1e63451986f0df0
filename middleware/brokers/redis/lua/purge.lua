-- Removes a dead letter for good, and records it.
-- KEYS[1] the dead-letter queue's list, KEYS[2] outcome log; if an operation removes it, KEYS[3] the operation.
-- ARGV[1] the stored dead letter, ARGV[2..22] event, ARGV[23] remove only while the queue is longer than this, or nothing; with an
-- operation, there is no such ARGV[23]: see `operated.lua`.
-- Returns 'done', 'already' if the dead letter is no longer there or the queue is not longer than ARGV[23], or 'refused' if the
-- operation may not go on. Bound: one message; the search begins at the oldest.
-- Checked before the dead letter is removed: the type of the log. If the log refuses the event, it is put back, as the oldest.
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
