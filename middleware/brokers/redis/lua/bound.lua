-- Keeps the outcome log below its cap: removes the oldest entries of a larger log, and notes the removal.
-- KEYS[1] outcome log, KEYS[2] trimmed. All in bytes: ARGV[1] cap, ARGV[2] the size to which a larger log is cut, ARGV[3] the size
-- from which on every block is measured; in a smaller log, only the first hundred blocks are.
-- Returns {bytes before, bytes after, entries removed}.
-- Bound: one look at each of the log's blocks (4 KiB, about 40 entries); below ARGV[3], at a hundred of them.
-- uses: clock
local log = KEYS[1]
local cap, leave = tonumber(ARGV[1]), tonumber(ARGV[2])

local function measure(samples)
  return redis.call('MEMORY', 'USAGE', log, 'SAMPLES', samples) or 0
end

-- Newer events may be larger than those in the first blocks, so a hundred blocks are enough only far from the cap.
local before = measure(100)
if before >= tonumber(ARGV[3]) then before = measure(0) end
if before <= cap then return {before, before, 0} end

-- Checked before anything is removed: whether the removal can be noted.
redis.call('HLEN', KEYS[2])
local first = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local removed, after = 0, before
-- One cut is not enough if the oldest entries are smaller than average. Whole blocks go first ('~', cheap), then single entries.
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
