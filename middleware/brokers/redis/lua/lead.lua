-- Takes or keeps the lead in a role. KEYS[1] dispatcher, letter_keeper, letter_watcher, exporter or operator.
-- ARGV[1] token, ARGV[2] for how many ms. Returns 1 if this token leads.
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
