-- Shared: a queue's slots, each `gap` milliseconds long, which are given out one by one to pace redeliveries.
-- A zset holds the stretches of taken slots: the member is a stretch's start, the score its end (milliseconds). A hole between two
-- stretches that is shorter than a slot is closed, so a slot fits behind any stretch.
-- Bound: two reads of the zset; at most a hundred past stretches are removed at a time.

-- A time with all its digits, because a slot may be a fraction of a millisecond.
local function exact(ms) return string.format('%.17g', ms) end

-- The first free slot from `due` on: its start (`at`), and the stretch that it begins or extends. Nothing is written.
local function slot_from(key, due, gap)
  local ahead = redis.call('ZRANGE', key, '(' .. exact(due), '+inf', 'BYSCORE', 'LIMIT', 0, 2, 'WITHSCORES')
  local slot, behind = {at = due, from = exact(due)}, 1
  if ahead[1] and tonumber(ahead[1]) < due + gap then
    slot.at, slot.from, slot.was, behind = tonumber(ahead[2]), ahead[1], ahead[2], 3
  else
    local before = redis.call('ZRANGE', key, exact(due), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    if before[1] and due - tonumber(before[2]) < gap then slot.from, slot.was = before[1], before[2] end
  end
  slot.ends = exact(slot.at + gap)
  local next_one = ahead[behind]
  if next_one and tonumber(next_one) < slot.at + 2 * gap then slot.closed, slot.ends = next_one, ahead[behind + 1] end
  return slot
end

-- Takes that slot. The key expires a minute after its last slot.
local function take_slot(key, slot, now)
  local over = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
  if #over > 0 then redis.call('ZREM', key, unpack(over)) end
  if slot.closed then redis.call('ZREM', key, slot.closed) end
  redis.call('ZADD', key, slot.ends, slot.from)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', key, string.format('%.0f', tonumber(last) - now + 60000))
end

-- Gives that slot back: restores the stretches.
local function free_slot(key, slot)
  redis.pcall('ZREM', key, slot.from)
  if slot.was then redis.pcall('ZADD', key, slot.was, slot.from) end
  if slot.closed then redis.pcall('ZADD', key, slot.ends, slot.closed) end
end

