-- Changes an operation's state, and records the change.
-- KEYS[1] operation:<id>, KEYS[2] operations:open, KEYS[3] audit.
-- ARGV[1] id, ARGV[2] the states that it may have now, each between commas, ARGV[3] the token that it must have, or '',
-- ARGV[4] the new state, ARGV[5] the new token, or '', ARGV[6] a message about it, ARGV[7] the record (JSON), or '',
-- ARGV[8] how many records are kept, ARGV[9] 'ended' if the new state is an end, or ''.
-- Returns 'done', 'refused' if it has another state or token, or 'missing'. The first write frees memory.
-- uses: clock
local read = redis.call('HMGET', KEYS[1], 'state', 'token')
if redis.call('EXISTS', KEYS[1]) == 0 then return 'missing' end
if not string.find(ARGV[2], ',' .. (read[1] or '') .. ',', 1, true) then return 'refused' end
if ARGV[3] ~= '' and read[2] ~= ARGV[3] then return 'refused' end
redis.call('SREM', KEYS[2], '')
redis.call('XLEN', KEYS[3])
redis.call('HDEL', KEYS[1], 'token')
local now = string.format('%.0f', now_ms())
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'message', ARGV[6], 'heartbeat_ms', now)
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'token', ARGV[5])
  redis.call('HSETNX', KEYS[1], 'started_ms', now)
end
if ARGV[9] == 'ended' then
  redis.call('HSET', KEYS[1], 'ended_ms', now)
  redis.call('SREM', KEYS[2], ARGV[1])
else
  redis.call('SADD', KEYS[2], ARGV[1])
end
if ARGV[7] ~= '' then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[8], '*', 'record', ARGV[7], 'moved', redis.call('HGET', KEYS[1], 'moved') or '0')
end
return 'done'
