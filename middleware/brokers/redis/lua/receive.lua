-- Hands a batch of messages to an owner: popped and recorded as held, both or neither.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] received:<token>, KEYS[4] leases,
-- KEYS[5 .. 4+Q] armed:<queue>, then the lists: for each priority, the most urgent first, one list for each of the Q queues.
-- ARGV[1] token, ARGV[2] number of this call, ARGV[3] how many messages at most, ARGV[4] how many bytes at most,
-- ARGV[5] Q, ARGV[6] how many owners may be armed for one queue, ARGV[7] for how long (ms), ARGV[8 .. 7+Q] what follows the raw
-- message in `unacked`, for each queue; ARGV[8+Q] how many messages of one queue before it is the next one's turn; ARGV[9+Q] up to
-- how many messages an owner is armed that has taken all there was.
-- Returns {state, server time in ms, armed queues, then for each message: tag, index of its list, raw message}.
-- state: 'ok', or 'fenced' (the owner's lease is gone), or 'stale' (a call that was overtaken by a later one).
-- A repeated number returns the batch of that number again: a reply that was lost on its way is not a message lost.
-- It never decodes: a message is bytes. Bound: ARGV[3] messages, ARGV[4] bytes and one message.
-- Checked: a list of another type is left alone, and its error is returned where there was nothing else. A message that cannot be
-- recorded as held is put back; that is so for the first one of a batch or for none, since all are recorded in the same two keys.
-- uses: clock
local token, number = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
if redis.call('HEXISTS', KEYS[4], token) == 0 then return {'fenced', now, 0} end

local Q = tonumber(ARGV[5])
local last = redis.call('HMGET', KEYS[3], 'number', 'first', 'next')
local previous, next_tag = tonumber(last[1] or 0), tonumber(last[3] or 1)

if previous == number then
  local answer = {'ok', now, 0}
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
if number ~= previous + 1 then return {'stale', now, 0} end

local budget, room = tonumber(ARGV[3]), tonumber(ARGV[4])
local answer, first, visible, refused = {'ok', now, 0}, next_tag, now / 1000 + 86400, nil
local lists, turn = #KEYS - 4 - Q, tonumber(ARGV[8 + Q] or 1)
for step = 0, lists / Q - 1 do
  local open = {}
  for q = 1, Q do open[q] = q end
  while #open > 0 and budget > 0 and room > 0 do
    local still = {}
    for _, q in ipairs(open) do
      if budget <= 0 or room <= 0 then break end
      local at, taken, raw = 4 + Q + step * Q + q, 0, nil
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
if budget > 0 and room > 0 and not refused and next_tag - first <= tonumber(ARGV[9 + Q] or 0) then
  -- Nothing is left: looking at the lists makes the server push a line to this connection when one of them changes.
  local until_ms, most = now + tonumber(ARGV[7]), tonumber(ARGV[6])
  for q = 1, Q do
    local armed = KEYS[4 + q]
    local cleared = redis.pcall('ZREMRANGEBYSCORE', armed, '-inf', now)
    if type(cleared) == 'number' and (redis.call('ZSCORE', armed, token) or redis.call('ZCARD', armed) < most) then
      redis.call('ZADD', armed, until_ms, token)
      redis.call('PEXPIRE', armed, tonumber(ARGV[7]) * 2)
      for step = 0, lists / Q - 1 do redis.call('LLEN', KEYS[4 + Q + step * Q + q]) end
      answer[3] = answer[3] + 1
    end
  end
end
return answer
