-- Shared: whether an operation may move a message, and the operation's counts.
-- `operation` is its key, or nil if no operation moves the message; `followed` is the set of lives that it follows, or nil.
-- With an operation, the last three of ARGV are its token, the target of the message (or ''), and the life that begins (or '').
local function is_halted(operation, followed)
  if not operation then return false end
  if followed then redis.call('SREM', followed, '') end
  local read = redis.call('HMGET', operation, 'state', 'token', 'moved', 'to:' .. ARGV[#ARGV - 1])
  for at = 3, 4 do
    if read[at] and (#read[at] > 15 or not string.match(read[at], '^%d+$')) then error('a count of an operation is not a number') end
  end
  return read[1] ~= 'running' or read[2] ~= ARGV[#ARGV - 2]
end

-- Counts a moved message (`by` is 1), or takes the count back (-1).
local function count(operation, followed, by)
  if not operation then return end
  redis.call('HINCRBY', operation, 'moved', by)
  if ARGV[#ARGV - 1] ~= '' then redis.call('HINCRBY', operation, 'to:' .. ARGV[#ARGV - 1], by) end
  if followed then redis.call(by > 0 and 'SADD' or 'SREM', followed, ARGV[#ARGV]) end
end

