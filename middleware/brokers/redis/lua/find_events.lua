-- Finds the events of all tasks whose ids begin with ARGV[3], in one page of the log, from the newest entry back.
-- KEYS[1] outcomes. ARGV[1] where to begin: '+', or '(' and the oldest id of the page before; ARGV[2] the most entries to read;
-- ARGV[3] the beginning of an id.
-- Returns {how many entries were read, the id of the oldest of them, then each found entry: id, fields and values}.
-- Changes nothing. Bound: ARGV[2] entries.
local entries, found = redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2]), {0, ''}
for at, entry in ipairs(entries) do
  found[1], found[2] = at, entry[1]
  local fields = entry[2]
  for field = 1, #fields, 2 do
    if fields[field] == 't' then
      if string.sub(fields[field + 1], 1, #ARGV[3]) == ARGV[3] then found[#found + 1] = entry end
      break
    end
  end
end
return found
