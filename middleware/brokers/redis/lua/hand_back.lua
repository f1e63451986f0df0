-- Moves a message from the delay store into its list, where a plain Celery worker takes it and waits for its ETA.
-- KEYS[1] delayed (destinations), KEYS[2] delayed:tasks, KEYS[3] delayed:due:<list>, KEYS[4] delayed:messages:<list>,
-- KEYS[5] the list.
-- ARGV[1] id in the delay store, ARGV[2] separator, ARGV[3] list name, ARGV[4] the message as it goes into the list.
-- Returns 'done', or 'already' if the message no longer waits. Its first write frees memory. Bound: one message.
-- Checked before anything changes: all types, and the rights to remove. The message is added to its list before it is removed.
redis.call('HDEL', KEYS[4], '') -- these remove nothing
for key = 1, 3 do redis.call('ZREM', KEYS[key], '') end
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 0 then return 'already' end
redis.call('LPUSH', KEYS[5], ARGV[4])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1] .. ARGV[2] .. ARGV[3])
local next_due = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
if next_due then redis.call('ZADD', KEYS[1], next_due, ARGV[3]) else redis.call('ZREM', KEYS[1], ARGV[3]) end
return 'done'
