-- Keeps plain workers from restoring messages that a worker holds, by a later time in `unacked_index`.
-- KEYS[1] unacked_index. ARGV[1] for how many seconds from now, ARGV[2..] tags.
-- Returns how many of the tags were there. The first write frees memory, for a full server.
-- Bound: the caller's page.
-- uses: clock
local visible, extended = string.format('%.3f', now_ms() / 1000 + tonumber(ARGV[1])), 0
for i = 2, #ARGV do
  if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZADD', KEYS[1], visible, ARGV[i])
    extended = extended + 1
  end
end
return extended
