-- Shared by the scripts that end or move a message which a worker holds: takes it from `unacked`, or says why not.
-- Its first write frees memory, so that a full server (maxmemory, noeviction) still runs the script to its end.
-- KEYS[1] unacked, KEYS[2] unacked_index, KEYS[3] starts, KEYS[4] leases; ARGV[1] tag, ARGV[2] owner token.
-- An empty tag stands for a message that was ended before its task ran (acks_late=False): there is nothing to take.
-- nil: taken; 'already': the message is gone, and its owner is alive, so this is a repeat; 'refused': it was given to another.
local function take()
  if ARGV[1] == '' then return nil end
  if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
    if redis.call('HEXISTS', KEYS[4], ARGV[2]) == 1 then return 'already' end
    return 'refused'
  end
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
  return nil
end

