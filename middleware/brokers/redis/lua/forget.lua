-- Forgets a dead-letter queue that is empty; its lists are gone already, because Redis keeps no empty list.
-- KEYS[1] dead_letter_queues, KEYS[2..] all lists of the queue. ARGV[1] name of the queue.
-- Returns 1, or 0 if it is not empty, or was not known. Bound: at most ten lists.
for at = 2, #KEYS do
  if redis.call('LLEN', KEYS[at]) > 0 then return 0 end
end
return redis.call('HDEL', KEYS[1], ARGV[1])
