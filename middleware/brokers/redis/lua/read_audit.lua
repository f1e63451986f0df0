-- Reads a page of the audit, and the state of the audit at the same instant. Changes nothing.
-- KEYS[1] audit. ARGV[1] where to begin, ARGV[2] how many records at most, ARGV[3] id of a record to look for, or ''.
-- Returns {how many were ever added, how many there are, records, 1 if it has the record of ARGV[3], time (ms)}, or nothing if
-- there is no audit. Bound: ARGV[2] records.
-- uses: clock
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local info, added, length = redis.call('XINFO', 'STREAM', KEYS[1]), 0, 0
for at = 1, #info, 2 do
  if info[at] == 'entries-added' then added = info[at + 1] end
  if info[at] == 'length' then length = info[at + 1] end
end
return {
  added,
  length,
  redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2]),
  ARGV[3] == '' and 0 or #redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3], 'COUNT', 1),
  now_ms(),
}
