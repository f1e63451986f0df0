-- Reads a page of the outcome log, and the state of the log at the same instant. Changes nothing. A transaction would not do: a
-- full Redis 7.0 refuses every command in one.
-- KEYS[1] outcome log, KEYS[2] exported, KEYS[3] trimmed.
-- ARGV[1] where to begin, ARGV[2] how many entries at most, ARGV[3] id of an entry to look for, or ''.
-- Returns {XINFO STREAM, entries, exported, trimmed, time (ms), 1 if the log has the entry of ARGV[3]}, or nothing if there is no
-- log. Bound: ARGV[2] entries.
-- uses: clock
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
return {
  redis.call('XINFO', 'STREAM', KEYS[1]),
  redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2]),
  redis.call('HGETALL', KEYS[2]),
  redis.call('HGETALL', KEYS[3]),
  now_ms(),
  ARGV[3] == '' and 0 or #redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3], 'COUNT', 1),
}
