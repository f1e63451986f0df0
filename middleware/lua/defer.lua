-- Moves a message that a worker holds to the delay store, or straight back to its list, and records it.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases, KEYS[5] outcome log,
-- KEYS[6] the list, KEYS[7] delayed (destinations), KEYS[8] delayed:due:<list>, KEYS[9] delayed:messages:<list>, KEYS[10] delayed:tasks.
-- ARGV[1] tag, ARGV[2] owner token, ARGV[3] message, ARGV[4] delay in ms or '', ARGV[5] due time in ms (where there is no delay),
-- ARGV[6] id in the delay store, ARGV[7] list name, ARGV[8] separator, ARGV[9] wake channel,
-- ARGV[10] 'next' (back to where it was taken from) or 'last' (behind all others), where it does not wait,
-- ARGV[11..26] event, or nothing.
-- Returns 'done', 'already' or 'refused'. The due time is counted from this server's clock. Bound: one message.
-- uses: append clock take
local why_not = take()
if why_not then return why_not end

local now = now_ms()
local due = ARGV[4] ~= '' and now + tonumber(ARGV[4]) or tonumber(ARGV[5])
if due <= now then
  redis.call(ARGV[10] == 'next' and 'RPUSH' or 'LPUSH', KEYS[6], ARGV[3])
else
  local earliest = redis.call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', KEYS[9], ARGV[6], ARGV[3])
  redis.call('ZADD', KEYS[8], due, ARGV[6])
  redis.call('ZADD', KEYS[10], 0, ARGV[6] .. ARGV[8] .. ARGV[7])
  redis.call('ZADD', KEYS[7], 'LT', due, ARGV[7])
  if not earliest or due < tonumber(earliest) then redis.call('PUBLISH', ARGV[9], due) end
end
if ARGV[11] then append(KEYS[5], 11, string.format('%d', due), string.format('%d', math.max(due - now, 0))) end
return 'done'
