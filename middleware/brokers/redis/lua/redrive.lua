-- Moves a dead letter back to its origin, and records it.
-- KEYS[1] the dead-letter queue's list, KEYS[2] the origin's list, KEYS[3] outcome log; if an operation moves it, KEYS[4] the
-- operation and perhaps KEYS[5] the lives that it follows.
-- ARGV[1] the stored dead letter, ARGV[2] the message that goes back, ARGV[3..23] event; with an operation, see `operated.lua`.
-- Returns 'done', 'already' if the dead letter is no longer there, or 'refused' if the operation may not go on.
-- Bound: one message; the search begins at the oldest.
-- Checked before the dead letter is removed: the types of list and log. If a later step fails, it is put back, as the oldest.
-- uses: append attempt operated
if is_halted(KEYS[4], KEYS[5]) then return 'refused' end
redis.call('LLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 'already' end
local pushed, counted
local err = attempt(
  function()
    pushed = redis.call('LPUSH', KEYS[2], ARGV[2])
    counted = true
    count(KEYS[4], KEYS[5], 1)
    append(KEYS[3], 3)
  end,
  function()
    if pushed then redis.call('LPOP', KEYS[2]) end
    redis.call('RPUSH', KEYS[1], ARGV[1])
    if counted then count(KEYS[4], KEYS[5], -1) end
  end)
return err or 'done'
