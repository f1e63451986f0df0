-- Keeps the outcome log below its cap: where it is above, the oldest entries go, and what went is noted.
-- KEYS[1] outcome log, KEYS[2] trimmed. ARGV[1] cap, ARGV[2] what to leave of it where it is passed, ARGV[3] from where on to measure
-- every block and not only the first few; all bytes.
-- Returns {bytes before, bytes after, entries removed}.
-- Bound: one look at each of the log's blocks (4 KiB, about 40 entries); far from the cap, at a hundred of them.
-- uses: clock
local log = KEYS[1]
local cap, leave = tonumber(ARGV[1]), tonumber(ARGV[2])

local function measure(samples)
  return redis.call('MEMORY', 'USAGE', log, 'SAMPLES', samples) or 0
end

-- The first blocks are the oldest: their size says little where younger events are larger, so this is for far from the cap only.
local before = measure(100)
if before >= tonumber(ARGV[3]) then before = measure(0) end
if before <= cap then return {before, before, 0} end

-- Checked: that what goes can be noted, before anything goes.
redis.call('HLEN', KEYS[2])
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local removed, after = 0, before
-- The oldest entries may be smaller than the average: then one cut is not enough. After whole blocks ('~', cheap), single entries.
for cut = 1, 6 do
  local length = redis.call('XLEN', log)
  if after <= cap or length == 0 then break end
  local keep = math.floor(length * leave / after)
  if cut < 4 then
    removed = removed + redis.call('XTRIM', log, 'MAXLEN', '~', keep, 'LIMIT', 0)
  else
    removed = removed + redis.call('XTRIM', log, 'MAXLEN', '=', keep)
  end
  after = measure(0)
end
if removed > 0 then
  local at = now_ms()
  local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  redis.call('HSETNX', KEYS[2], 'first', first[1])
  redis.call('HSETNX', KEYS[2], 'since', at)
  redis.call('HINCRBY', KEYS[2], 'entries', removed)
  redis.call('HSET', KEYS[2], 'before', oldest and oldest[1] or '', 'at', at)
end
return {before, after, removed}
