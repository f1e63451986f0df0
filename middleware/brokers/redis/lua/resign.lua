-- Gives up the lead in a role. KEYS[1] dispatcher or operator. ARGV[1] token. Returns 1 if this token led.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
