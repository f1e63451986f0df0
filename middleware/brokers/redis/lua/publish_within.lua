-- Publishes a message to a queue with bounds, and records it. Its times are by this server's clock, and the queue's length is kept.
-- KEYS[1] outcome log, KEYS[2] dead_letter_queues, KEYS[3] the dead-letter queue's list, KEYS[4] its bindings, KEYS[5] the
-- message's list, KEYS[6..] all lists of the queue, the most urgent first.
-- ARGV[1] the message, ARGV[2] its gaps for times (dated.lua), or '', ARGV[3] queue expiry in ms or '', ARGV[4] the most messages
-- that the queue may hold, or '', ARGV[5] '1' if a full queue refuses, ARGV[6..26] the event; then, for the message to evict:
-- ARGV[27] index in KEYS of its list, or 0, ARGV[28] the message, ARGV[29] origin queue, ARGV[30] '1' if its dead-letter queue must
-- exist, ARGV[31] the dead letter, or '' (the message is discarded), ARGV[32] name of the dead-letter queue, ARGV[33..53] its
-- event, or nothing, ARGV[54..74] an event to record before it, or nothing.
-- Returns {state, ...}: 'done' and the length of the queue; 'missing' and the length (published to a full queue, because the
-- dead-letter queue does not exist); 'refused' and the length; 'oldest', the index of a list, the message to evict first, and the
-- time: then nothing has changed. Bound: two messages, at most ten lists.
-- Checked: every key that is written later is read first. If a step fails, all is taken back, and nothing is published or recorded.
-- uses: append attempt clock dated oldest
redis.call('XLEN', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('LLEN', KEYS[3])
local length, most, state = length_from(6), tonumber(ARGV[4]), 'done'

local popped, pushed
local function evict()
  popped = redis.call('RPOP', KEYS[tonumber(ARGV[27])])
  if ARGV[31] ~= '' then
    pushed = redis.call('LPUSH', KEYS[3], ARGV[31])
    redis.call('HSET', KEYS[2], ARGV[32], ARGV[29])
  end
end

local evicts = false
if most and length >= most then
  if ARGV[5] == '1' then return {'refused', length} end
  local at, raw = oldest_from(6)
  if tonumber(ARGV[27] or 0) ~= at or ARGV[28] ~= raw then return {'oldest', at, raw, now_ms()} end
  if ARGV[30] == '1' and redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then state = 'missing' else evicts = true end
end

redis.call('LPUSH', KEYS[5], dated(ARGV[1], ARGV[2]))
local err = attempt(
  function()
    if evicts then evict() end
    append(KEYS[1], 6)
    if evicts and ARGV[54] then append(KEYS[1], 54) end
    if evicts and ARGV[33] then append(KEYS[1], 33) end
  end,
  function()
    if pushed then redis.call('LPOP', KEYS[3]) end
    if popped then redis.call('RPUSH', KEYS[tonumber(ARGV[27])], popped) end
    redis.call('LPOP', KEYS[5])
  end)
if err then return err end
if ARGV[3] ~= '' then
  for at = 6, #KEYS do redis.pcall('PEXPIRE', KEYS[at], ARGV[3]) end
end
return {state, length_from(6)}
