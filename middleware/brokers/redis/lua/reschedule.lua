-- Gives a message in the delay store another due time, and records it.
-- KEYS[1] delayed (destinations), KEYS[2] delayed:due:<list>, KEYS[3] delayed:messages:<list>, KEYS[4] outcome log.
-- ARGV[1] id in the delay store, ARGV[2] list name, ARGV[3] due time in ms, or '' for now, ARGV[4] the message to store instead,
-- ARGV[5] wake channel, ARGV[6..26] event.
-- Returns 'done', or 'already' if the message no longer waits. Bound: one message.
-- Checked first: the types of all keys that are written. If the log refuses the event, the message waits as before.
-- uses: append attempt clock
redis.call('HDEL', KEYS[3], '') -- removes nothing; a first write that frees memory makes a full server accept the others
redis.call('ZCARD', KEYS[1])
redis.call('XLEN', KEYS[4])
local before = redis.call('ZSCORE', KEYS[2], ARGV[1])
local message = redis.call('HGET', KEYS[3], ARGV[1])
if not before or not message then return 'already' end
local now = now_ms()
local due = ARGV[3] ~= '' and tonumber(ARGV[3]) or now
local function wait(until_ms, raw)
  redis.call('HSET', KEYS[3], ARGV[1], raw)
  redis.call('ZADD', KEYS[2], until_ms, ARGV[1])
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  redis.call('ZADD', KEYS[1], first[2], ARGV[2])
end
local err = attempt(
  function()
    wait(string.format('%.0f', due), ARGV[4])
    append(KEYS[4], 6, string.format('%.0f', due), string.format('%.0f', math.max(due - now, 0)))
  end,
  function() wait(before, message) end)
if err then return err end
if due < tonumber(before) then redis.pcall('PUBLISH', ARGV[5], string.format('%.0f', due)) end
return 'done'
