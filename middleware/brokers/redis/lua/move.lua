-- Moves a dead letter to another dead-letter queue, for an operator, and records that it left, and that it died there.
-- KEYS[1] the dead-letter queue's list, KEYS[2] the other queue's list, KEYS[3] outcome log, KEYS[4] dead_letter_queues;
-- if an operation moves it, KEYS[5] the operation.
-- ARGV[1] the stored dead letter, ARGV[2] the dead letter to store in the other queue, ARGV[3] name of the other queue,
-- ARGV[4] origin queue, ARGV[5..25] and ARGV[26..46] the two events; with an operation, see `operated.lua`.
-- Returns 'done', 'already' if the dead letter is no longer there, or 'refused' if the operation may not go on.
-- Bound: one message; the search begins at the oldest.
-- Checked before the dead letter is removed: all types. If a later step fails, it is put back, as the oldest.
-- uses: append attempt operated
if is_halted(KEYS[5]) then return 'refused' end
redis.call('LLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 'already' end
local pushed, counted
local err = attempt(
  function()
    pushed = redis.call('LPUSH', KEYS[2], ARGV[2])
    redis.call('HSET', KEYS[4], ARGV[3], ARGV[4])
    counted = true
    count(KEYS[5], nil, 1)
    append(KEYS[3], 5)
    append(KEYS[3], 26)
  end,
  function()
    if pushed then redis.call('LPOP', KEYS[2]) end
    redis.call('RPUSH', KEYS[1], ARGV[1])
    if counted then count(KEYS[5], nil, -1) end
  end)
return err or 'done'
