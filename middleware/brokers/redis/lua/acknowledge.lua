-- Ends a message that a worker holds, and records how; the result of its task, if there is one, is stored first.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log; if the worker waits as a busy one
-- for its one queue, and this end frees a process: KEYS[6] received:<token>, KEYS[7] watch:<queue>, KEYS[8] idle:<queue>, and then
-- the lists of the queue.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] the number of the call of `receive.lua` since which the worker waits so, or '',
-- ARGV[4..24] event, or nothing if there is none to record, ARGV[25..29] as in `result.lua`.
-- Returns 'done', 'already' or 'refused'; or the number in ARGV[3]: done, and the worker now waits as a free one.
-- Bound: one message.
-- Checked: the message is recorded before it is ended: if the log refuses the event, or a key refuses the result, it stays held.
-- uses: append clock take result
local refusal = why_not()
if refusal then return refusal end
if ARGV[25] then store_result(25) end
if ARGV[4] then append(KEYS[5], 4) end
let_go()

-- Whether the worker waits as a free one from now on. If not, it asks again: it has asked since then, it no longer waits (it was
-- woken), the queue has messages, or the worker may be needed as the watcher or the deputy.
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
  local ok, waits = pcall(waits_as_free) -- keys of another type: the worker asks
  if ok and waits then return tonumber(ARGV[3]) end
end
return 'done'
