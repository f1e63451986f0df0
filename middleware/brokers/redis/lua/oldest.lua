-- Shared: the length and the oldest message of a queue. KEYS[first ..] are all its lists, the most urgent first.

-- How many messages wait in the queue, all priorities together.
local function length_from(first)
  local length = 0
  for at = first, #KEYS do length = length + redis.call('LLEN', KEYS[at]) end
  return length
end

-- The oldest message of the least urgent priority that has messages: the index of its list in KEYS, and the message.
local function oldest_from(first)
  for at = #KEYS, first, -1 do
    local raw = redis.call('LINDEX', KEYS[at], -1)
    if raw then return at, raw end
  end
end

