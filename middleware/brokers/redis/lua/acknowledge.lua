-- Ends a message that a worker holds, and records the outcome; the task's result, if there is one, is stored first.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log. If the worker waits as busy for its
-- only queue, and this end frees a process: KEYS[6] received:<token>, KEYS[7] watch:<queue>, KEYS[8] idle:<queue>, and then the
-- lists of the queue.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] the number of the call of `receive.lua` in which that wait began, or '',
-- ARGV[4..24] event, or nothing, ARGV[25..29] as in `result.lua`.
-- Returns 'done', 'already' or 'refused'; or the number in ARGV[3]: done, and the worker now waits as free.
-- Bound: one message.
-- Checked: if the log refuses the event, or a key refuses the result, the message stays held.
-- uses: append clock take result
local refusal = why_not()
if refusal then return refusal end
if ARGV[25] then store_result(25) end
if ARGV[4] then append(KEYS[5], 4) end
let_go()

-- Makes the worker wait as free; returns whether it does. If it has asked since, was woken, the queue has messages, or a watcher or
-- deputy may be needed, the worker must ask again.
local function waits_as_free()
  if redis.call('HGET', KEYS[6], 'number') ~= ARGV[3] then return false end
  if redis.call('EXISTS', unpack(KEYS, 9)) > 0 then return false end
  local now = now_ms()
  local known = redis.call('HMGET', KEYS[7], 'watcher', 'until', 'free', 'deputy', 'deputy_until')
  local watcher, deputy = known[1], known[4]
  if not watcher or known[3] ~= '1' or tonumber(known[2]) <= now then return false end
  if not deputy or deputy == ARGV[2] or tonumber(known[5]) <= now then return false end
  local leases = redis.call('HMGET', KEYS[4], watcher, deputy)
  if not leases[1] or not leases[2] then return false end
  return redis.call('ZADD', KEYS[8], 'XX', 'CH', now, ARGV[2]) == 1
end

if KEYS[6] then
  local ok, waits = pcall(waits_as_free) -- an error (a key of another type) also makes the worker ask
  if ok and waits then return tonumber(ARGV[3]) end
end
return 'done'
