-- Shared by the scripts that end or move a message that a worker holds.
-- They call `why_not` first, then write, and call `let_go` last: if the server refuses a step (a key of another type, a forbidden
-- command), the message is still held.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases; ARGV[1] tag, ARGV[2] owner token.
-- An empty tag: no message is held, and only the event is recorded.

-- Returns nil if the message may be taken; 'already' if it is gone and its owner is alive (a repeated call); 'refused' if it was
-- given to another owner. The HDEL removes nothing. It fails if `let_go` would fail, before anything is written, and it makes a
-- full server (maxmemory, noeviction) accept the writes that follow. The ZREM only keeps plain workers from restoring the message.
local function why_not()
  redis.call('HDEL', KEYS[1], '')
  if ARGV[1] == '' then return nil end
  if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if redis.call('HEXISTS', KEYS[4], ARGV[2]) == 1 then return 'already' end
    return 'refused'
  end
  redis.call('ZREM', KEYS[2], ARGV[1])
  return nil
end

local function let_go()
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.pcall('HDEL', KEYS[3], ARGV[1])
end

