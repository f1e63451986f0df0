-- Moves a message that a worker holds to the delay store, or directly back to its list, and records it.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log,
-- KEYS[6] the list, KEYS[7] delayed (destinations), KEYS[8] delayed:due:<list>, KEYS[9] delayed:messages:<list>,
-- KEYS[10] delayed:tasks, KEYS[11] slots:<rate>:<queue>, only if the queue has a retry budget.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] message, ARGV[4] delay in ms or '', ARGV[5] due time in ms (if there is no delay),
-- ARGV[6] id in the delay store, ARGV[7] list name, ARGV[8] separator, ARGV[9] wake channel,
-- ARGV[10] if the message does not wait: 'next' (back to where it was taken from) or 'last' (behind all others),
-- ARGV[11] with a budget: the length of a slot in ms, ARGV[12] the latest time (ms) until which it may wait for its slot, or '',
-- ARGV[13..33] event, or nothing.
-- Returns 'done', 'already' or 'refused'. Times are by this server's clock. Bound: one message.
-- With a budget, the message takes the queue's first free slot after its own due time. If the slot is later than ARGV[12] (when the
-- message expires), or more than a hundred years away, the message waits until that limit, and takes no slot.
-- Checked: if a step fails, all is taken back, and the message stays held.
-- uses: append attempt clock slots take
local refusal = why_not()
if refusal then return refusal end

local now = now_ms()
local due = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or tonumber(ARGV[5])
local is_next, member = ARGV[10] == 'next', ARGV[6] .. ARGV[8] .. ARGV[7]
local waits, earliest, pushed, slot

local function find_slot()
  slot = slot_from(KEYS[11], math.max(due, now), tonumber(ARGV[11]))
  local last = math.min(tonumber(ARGV[12]) or math.huge, now + 3155760000000)
  if slot.at > last then due, slot = math.max(due, last), nil else due = math.ceil(slot.at) end
end

local function add()
  if KEYS[11] then find_slot() end
  waits = due > now
  if waits then
    earliest = redis.call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
    redis.call('HSET', KEYS[9], ARGV[6], ARGV[3])
    redis.call('ZADD', KEYS[8], due, ARGV[6])
    redis.call('ZADD', KEYS[10], 0, member)
    redis.call('ZADD', KEYS[7], 'LT', due, ARGV[7])
  else
    pushed = redis.call(is_next and 'RPUSH' or 'LPUSH', KEYS[6], ARGV[3])
  end
  if slot then take_slot(KEYS[11], slot, now) end
  if ARGV[13] then append(KEYS[5], 13, string.format('%d', due), string.format('%d', math.max(due - now, 0))) end
end

local function undo()
  if waits then
    redis.pcall('HDEL', KEYS[9], ARGV[6])
    redis.pcall('ZREM', KEYS[8], ARGV[6])
    redis.pcall('ZREM', KEYS[10], member)
  elseif pushed then
    redis.call(is_next and 'RPOP' or 'LPOP', KEYS[6])
  end
  if slot then free_slot(KEYS[11], slot) end
end

local err = attempt(add, undo)
if err then return err end
let_go()
if waits and (not earliest or due < tonumber(earliest)) then redis.pcall('PUBLISH', ARGV[9], due) end
return 'done'
