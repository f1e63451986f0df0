-- Gives an owner a batch of messages. Each is popped and recorded as held, or neither.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] received:<token>, KEYS[4] leases, KEYS[5] woken:<token>,
-- KEYS[6 .. 5+Q] watch:<queue>, KEYS[6+Q .. 5+2Q] idle:<queue>, then the lists: for each priority, the most urgent first, one list
-- for each of the Q queues.
-- ARGV[1] token, ARGV[2] number of this call, ARGV[3] the most messages, ARGV[4] the most bytes, ARGV[5] Q,
-- ARGV[6] how many processes of this owner are free (-1: it receives no pushes), ARGV[7] 1 if no push woke it,
-- ARGV[8 .. 7+Q] for each queue, the text after the raw message in `unacked`; ARGV[8+Q] how many messages a queue gives at a time.
-- Returns {state, server time in ms, when to look again, the watched queues, then for each message: tag, index of its list, raw}.
-- State: 'ok', 'fenced' (the owner's lease is gone), or 'stale' (a later call came before this one).
-- When to look again: after this many ms; if negative, also when a process is free again; 0: as soon as the owner has room.
-- The watched queues: a text with a 1 for each queue that the owner watches, and a 0 for each other queue.
-- A repeated number returns the batch of that number again, so that a lost reply loses no message.
-- Messages are not decoded. Bound: ARGV[3] messages, ARGV[4] bytes and one message, and ten owners for each queue.
-- Checked: a list of another type is not changed, and its error is returned if no message was found. A message that cannot be
-- recorded as held is put back; only the first of a batch can fail, because all are recorded in the same two keys.
--
-- One push wakes one worker. Each queue has one watcher: an owner that looks at the lists after this call (EXISTS, with tracking
-- on), so that the server sends it a push when one of them changes. The other owners wait in `idle`, the free ones first; each has
-- looked at its own `woken` key. A watcher that becomes busy, or cannot take all messages, makes the first idle owner the watcher,
-- and wakes it by writing its key. A busy owner in `idle` that has a free process again reports it with its acknowledgement
-- (`acknowledge.lua`), or asks. A watcher loses the watch if its lease has ended, or if it has not asked for WATCH. So another
-- owner, the deputy, looks each second. The others look every LOOK, and less often if many wait. The keys of a queue expire if no
-- owner has looked for MEMORY; only owners that no push woke renew them, to save commands.
-- uses: clock
local token, number = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
if redis.call('HEXISTS', KEYS[4], token) == 0 then return {'fenced', now, 0, ''} end

local Q = tonumber(ARGV[5])
local last = redis.call('HMGET', KEYS[3], 'number', 'first', 'next')
local previous, next_tag = tonumber(last[1] or 0), tonumber(last[3] or 1)

if previous == number then
  local answer = {'ok', now, 0, ''}
  for i = tonumber(last[2]), next_tag - 1 do
    local tag = token .. ':' .. i
    local value = redis.call('HGET', KEYS[1], tag)
    if value then
      answer[#answer + 1] = tag
      answer[#answer + 1] = 0
      answer[#answer + 1] = value
    end
  end
  return answer
end
if number ~= previous + 1 then return {'stale', now, 0, ''} end

local budget, room = tonumber(ARGV[3]), tonumber(ARGV[4])
local answer, first, visible, refused = {'ok', now, 0, ''}, next_tag, now / 1000 + 86400, nil
local first_list = 5 + 2 * Q
local lists, turn = #KEYS - first_list, tonumber(ARGV[8 + Q] or 1)
for step = 0, lists / Q - 1 do
  local open = {}
  for q = 1, Q do open[q] = q end
  while #open > 0 and budget > 0 and room > 0 do
    local still = {}
    for _, q in ipairs(open) do
      if budget <= 0 or room <= 0 then break end
      local at, taken, raw = first_list + step * Q + q, 0, nil
      repeat
        raw = redis.pcall('RPOP', KEYS[at])
        if type(raw) == 'table' then
          refused, raw = raw, nil
        elseif raw then
          local tag = token .. ':' .. next_tag
          local written = redis.pcall('HSET', KEYS[1], tag, '[' .. raw .. ARGV[7 + q])
          if type(written) ~= 'table' then written = redis.pcall('ZADD', KEYS[2], visible, tag) end
          if type(written) == 'table' then
            redis.call('RPUSH', KEYS[at], raw)
            redis.pcall('HDEL', KEYS[1], tag)
            return written
          end
          next_tag, budget, room, taken = next_tag + 1, budget - 1, room - #raw, taken + 1
          answer[#answer + 1] = tag
          answer[#answer + 1] = at
          answer[#answer + 1] = raw
        end
      until not raw or taken >= turn or budget <= 0 or room <= 0
      if raw then still[#still + 1] = q end
    end
    open = still
  end
end

if refused and next_tag == first then return refused end
redis.call('HSET', KEYS[3], 'number', number, 'first', first, 'next', next_tag)

-- Milliseconds: LOOK and SECOND_LOOK (the deputy's) between two looks; WATCH: a watch lasts; MEMORY: a queue's keys last (30 days).
-- If more than MEDIUM owners wait, each looks half as often; if more than LARGE, a quarter as often.
-- BUSY is added to the time at which a busy owner began to wait, so that owners with a free process come first.
local LOOK, SECOND_LOOK, WATCH, MEMORY, BUSY, MEDIUM, LARGE = 5000, 1000, 10000, 2592000000, 1e15, 8, 32
local took, is_empty = next_tag - first, budget > 0 and room > 0 and not refused
local free, is_look, hears = tonumber(ARGV[6]) - took, ARGV[7] == '1', ARGV[6] ~= '-1'

local function watch(key, owner, is_free)
  local is_new = redis.call('HSET', key, 'watcher', owner, 'until', now + WATCH, 'free', is_free and 1 or 0) == 3
  if is_new then redis.call('PEXPIRE', key, MEMORY) end
end

-- Removes the first idle owner that has a lease; returns it, and whether it is free, or false. Busy owners count only with `any`.
local function next_idle(key, any)
  for _ = 1, 10 do
    local ahead = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not ahead[1] or not any and tonumber(ahead[2]) > BUSY then return false end
    redis.call('ZREM', key, ahead[1])
    if ahead[1] ~= token and redis.call('HEXISTS', KEYS[4], ahead[1]) == 1 then return ahead[1], tonumber(ahead[2]) <= BUSY end
  end
  return false
end

-- Makes another owner the watcher, and wakes it. The `woken` key is written only to cause a push, and expires at once.
local function hand_on(key, owner, is_free, known)
  watch(key, owner, is_free)
  redis.call('SET', string.sub(KEYS[5], 1, -1 - #token) .. owner, '', 'PX', 1)
  if known[4] == owner then
    redis.call('HDEL', key, 'deputy')
    known[4] = false
  end
end

-- Decides whether this owner watches a queue, waits, or asks again. Returns when it looks again, and '1' if it watches.
local function place_of(q)
  local key, idle = KEYS[5 + q], KEYS[5 + Q + q]
  local known = redis.call('HMGET', key, 'watcher', 'until', 'free', 'deputy', 'deputy_until')
  local watcher, is_mine = known[1], known[1] == token
  if watcher and not is_mine and (tonumber(known[2]) <= now or redis.call('HEXISTS', KEYS[4], watcher) == 0) then watcher = false end
  if not is_empty or not hears then
    local other, is_free = next_idle(idle, true)
    if other then hand_on(key, other, is_free, known) elseif is_mine then redis.call('HDEL', key, 'watcher') end
    redis.call('ZREM', idle, token)
    return 0, '0'
  end
  local may_watch = not watcher or is_mine
  if free > 0 then
    may_watch = may_watch or known[3] == '0' or is_look and took > 0
  elseif may_watch then
    local other = next_idle(idle, false)
    if other then
      hand_on(key, other, true, known)
      may_watch = false
    end
  end
  if may_watch then
    redis.call('ZREM', idle, token)
    watch(key, token, free > 0)
    if is_look then redis.call('PEXPIRE', key, MEMORY) end
    if known[4] == token then redis.call('HDEL', key, 'deputy') end
    return LOOK, '1'
  end
  redis.call('ZADD', idle, free > 0 and now or now + BUSY, token)
  if is_look then
    redis.call('PEXPIRE', key, MEMORY)
    redis.call('PEXPIRE', idle, MEMORY)
  end
  local waiting = redis.call('ZCARD', idle)
  local look = LOOK * (waiting > LARGE and 4 or waiting > MEDIUM and 2 or 1)
  if free <= 0 then return -look, '0' end
  if known[4] and known[4] ~= token and tonumber(known[5]) > now then return look, '0' end
  redis.call('HSET', key, 'deputy', token, 'deputy_until', now + 3 * SECOND_LOOK)
  return SECOND_LOOK, '0'
end

for q = 1, Q do
  local ok, look, watches = pcall(place_of, q)
  if not ok then look, watches = SECOND_LOOK, '0' end -- a key of another type: then every owner looks each second
  answer[4] = answer[4] .. watches
  if look == 0 or answer[3] == 0 and q > 1 then
    answer[3] = 0
  elseif q == 1 then
    answer[3] = look
  else
    local sign = (answer[3] < 0 or look < 0) and -1 or 1
    answer[3] = sign * math.min(math.abs(answer[3]), math.abs(look))
  end
end
return answer
