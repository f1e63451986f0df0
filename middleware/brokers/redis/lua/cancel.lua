-- Removes one message from the delay store for good, and records it.
-- KEYS[1] delayed (destinations), KEYS[2] delayed:tasks, KEYS[3] delayed:due:<list>, KEYS[4] delayed:messages:<list>,
-- KEYS[5] outcome log; if an operation cancels the message, KEYS[6] the operation.
-- ARGV[1] id in the delay store, ARGV[2] separator, ARGV[3] list name, ARGV[4..24] event; with an operation, see `operated.lua`.
-- Returns 'done', 'already' if the message no longer waits, or 'refused' if the operation may not go on.
-- Its first write frees memory. Bound: one message.
-- uses: append attempt operated
-- Checked before the event is recorded: the types of all keys that are written, and the rights to remove.
if is_halted(KEYS[6]) then return 'refused' end
redis.call('HDEL', KEYS[4], '') -- these remove nothing; they fail if the removals below would fail
for key = 1, 3 do redis.call('ZREM', KEYS[key], '') end
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 0 then return 'already' end
local counted
local err = attempt(
  function()
    count(KEYS[6], nil, 1)
    counted = true
    append(KEYS[5], 4)
  end,
  function() if counted then count(KEYS[6], nil, -1) end end)
if err then return err end
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1] .. ARGV[2] .. ARGV[3])
local next_due = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
if next_due then redis.call('ZADD', KEYS[1], next_due, ARGV[3]) else redis.call('ZREM', KEYS[1], ARGV[3]) end
return 'done'
