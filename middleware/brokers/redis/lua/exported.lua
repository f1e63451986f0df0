-- Ends the export of a part of the outcome log: moves the cursor, and removes what was exported.
-- KEYS[1] outcome log, KEYS[2] exported, KEYS[3] trimmed.
-- ARGV[1] id and ARGV[2] position at which the export began ('' and 0: at the first entry), ARGV[3] id of the last exported entry,
-- ARGV[4] its position (how many entries had been added up to it), ARGV[5] when the newest reported removal was noted, or ''.
-- Returns how many entries were removed, or -1 if another export has moved the cursor: then nothing has changed.
-- Bound: the entries of one batch.
-- uses: clock
-- Checked before the cursor moves: the types of the log and of `trimmed`.
redis.call('XLEN', KEYS[1])
redis.call('HLEN', KEYS[3])
local id = redis.call('HGET', KEYS[2], 'id') or ''
local position = redis.call('HGET', KEYS[2], 'position') or '0'
if id == ARGV[3] and position == ARGV[4] then return 0 end -- a repeated call, because the reply was lost
if id ~= ARGV[1] or position ~= ARGV[2] then return -1 end
-- The first write frees memory, so that the log can be emptied on a full server.
redis.call('HDEL', KEYS[2], 'at')
redis.call('HSET', KEYS[2], 'id', ARGV[3], 'position', ARGV[4], 'at', now_ms())
-- MINID keeps the entry that it names, and a Lua number cannot hold the next id exactly, so XDEL removes the last entry.
local removed = redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[3]) + redis.call('XDEL', KEYS[1], ARGV[3])
if redis.call('HGET', KEYS[3], 'at') == ARGV[5] then redis.call('DEL', KEYS[3]) end
return removed
