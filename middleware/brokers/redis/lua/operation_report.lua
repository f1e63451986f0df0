-- Stores an operation's progress.
-- KEYS[1] operation:<id>, KEYS[2] operation:followed:<id>.
-- ARGV[1] the token that it must have, ARGV[2] its progress (JSON), ARGV[3] a message about it, ARGV[4..] lives that have ended.
-- Returns 'done', or 'refused' if it is not running, or has another token. The first write frees memory.
-- uses: clock
local read = redis.call('HMGET', KEYS[1], 'state', 'token')
if read[1] ~= 'running' or read[2] ~= ARGV[1] then return 'refused' end
redis.call('SREM', KEYS[2], '')
redis.call('HDEL', KEYS[1], 'progress')
local now = string.format('%.0f', now_ms())
redis.call('HSET', KEYS[1], 'progress', ARGV[2], 'message', ARGV[3], 'heartbeat_ms', now, 'reported_ms', now)
for at = 4, #ARGV do redis.call('SREM', KEYS[2], ARGV[at]) end
return 'done'
