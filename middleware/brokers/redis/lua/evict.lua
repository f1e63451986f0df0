-- Moves the oldest message of a queue to a dead-letter queue, or discards it, and records it: because the queue is too long, or
-- because the message has expired. Moves only the message that the caller's dead letter was made from, if that is the oldest.
-- KEYS[1] outcome log, KEYS[2] dead_letter_queues, KEYS[3] the dead-letter queue's list, KEYS[4] its bindings,
-- KEYS[5..] all lists of the queue, the most urgent first.
-- ARGV[1] the most messages that the queue may hold, or '' (the length is ignored), ARGV[2] index in KEYS of the message's list, or
-- 0 (not known yet), ARGV[3] the message, ARGV[4] origin queue, ARGV[5] '1' if the dead-letter queue must exist, ARGV[6] the dead
-- letter, or '' (the message is discarded), ARGV[7] name of the dead-letter queue, ARGV[8..28] the event, or nothing, ARGV[29..49]
-- an event to record before it, or nothing.
-- Returns {state, index of the list, message}: 'done' or 'oldest' (another message is the oldest now), with the message to evict
-- next; 'within' (there is nothing to do); 'missing' (the dead-letter queue does not exist).
-- Bound: one message, at most ten lists.
-- Checked: every key that is written later is read first. Popping the message first frees memory on a full server; if a later step
-- fails, the message is put back.
-- uses: append attempt oldest
redis.call('XLEN', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('LLEN', KEYS[3])
local most, at = tonumber(ARGV[1]), tonumber(ARGV[2])

-- The message to evict next: with a limit for the length, the oldest of all; otherwise the oldest of the same list.
local function following()
  if most and length_from(5) <= most then return {'within'} end
  if most or at == 0 then
    local index, raw = oldest_from(5)
    if not index then return {'within'} end
    return {'oldest', index, raw}
  end
  local raw = redis.call('LINDEX', KEYS[at], -1)
  if not raw then return {'within'} end
  return {'oldest', at, raw}
end

local now = following()
if now[1] == 'within' or at == 0 or now[2] ~= at or now[3] ~= ARGV[3] then return now end
if ARGV[5] == '1' and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then return {'missing', at, ARGV[3]} end

local popped, pushed
local err = attempt(
  function()
    popped = redis.call('RPOP', KEYS[at])
    if ARGV[6] ~= '' then
      pushed = redis.call('LPUSH', KEYS[3], ARGV[6])
      redis.call('HSET', KEYS[2], ARGV[7], ARGV[4])
    end
    if ARGV[29] then append(KEYS[1], 29) end
    if ARGV[8] then append(KEYS[1], 8) end
  end,
  function()
    if pushed then redis.call('LPOP', KEYS[3]) end
    if popped then redis.call('RPUSH', KEYS[at], popped) end
  end)
if err then return err end
local next = following()
return {'done', next[2] or 0, next[3] or ''}
