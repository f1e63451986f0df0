-- Moves a message that a worker holds to a dead-letter queue, and records it.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log,
-- KEYS[6] the dead-letter queue's list, KEYS[7] dead_letter_queues, KEYS[8] the queue's bindings, if the queue must exist.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] message, ARGV[4] name of the dead-letter queue, ARGV[5] origin queue,
-- ARGV[6..26] event, or nothing if the death is recorded already.
-- Returns 'done', 'already', 'refused' or 'missing' (the queue must exist, and does not). Bound: one message.
-- Checked: if a step fails, the dead letter is taken back, and the message stays held.
-- uses: append attempt take
local refusal = why_not()
if refusal then return refusal end
if KEYS[8] and redis.call('EXISTS', KEYS[6], KEYS[8]) == 0 then return 'missing' end
redis.call('LPUSH', KEYS[6], ARGV[3])
local is_new
local err = attempt(
  function()
    is_new = redis.call('HSET', KEYS[7], ARGV[4], ARGV[5]) == 1
    if ARGV[6] then append(KEYS[5], 6) end
  end,
  function()
    if is_new then redis.call('HDEL', KEYS[7], ARGV[4]) end
    redis.call('LPOP', KEYS[6])
  end)
if err then return err end
let_go()
return 'done'
