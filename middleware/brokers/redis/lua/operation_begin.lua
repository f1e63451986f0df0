-- Stores a new operation, in the state 'waiting', and records that it was begun.
-- KEYS[1] operation:<id>, KEYS[2] operations, KEYS[3] operations:open, KEYS[4] audit.
-- ARGV[1] id, ARGV[2] what the operation does (JSON), ARGV[3] the record (JSON), ARGV[4] how many records are kept.
-- The listing keeps the order in which operations were begun, even within a millisecond, or if the clock was set back.
-- Returns 'done', or 'already' if it exists. The first write is an SREM of nothing: then a full server accepts the other writes.
-- uses: clock
if redis.call('EXISTS', KEYS[1]) == 1 then return 'already' end
local newest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
redis.call('XLEN', KEYS[4])
redis.call('SREM', KEYS[3], ARGV[1])
local now = string.format('%.0f', now_ms())
redis.call('HSET', KEYS[1], 'about', ARGV[2], 'state', 'waiting', 'created_ms', now)
redis.call('ZADD', KEYS[2], string.format('%.0f', math.max(now, (newest or 0) + 1)), ARGV[1])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*', 'record', ARGV[3])
return 'done'
