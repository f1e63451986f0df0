-- Shared by the scripts that end or move a message which a worker holds.
-- Such a script first calls `why_not`, then makes its additions, and lets go of the message last: if the server refuses a step (a
-- key of another type, a command that the user may not use), the message is still held.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases; ARGV[1] tag, ARGV[2] owner token.
-- An empty tag: no message is held, and only the event is recorded.

-- nil: the message may be taken; 'already': it is gone, and its owner is alive, so this call is a repeat; 'refused': it was given
-- to another owner. The first command removes nothing: it fails if `let_go` would fail, before anything is added; and because it
-- frees memory, a full server (maxmemory, noeviction) runs the script to its end. The ZREM removes only the entry by which plain
-- workers find the message.
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

