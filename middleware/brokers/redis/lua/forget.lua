-- Forgets an empty dead-letter queue. It has no lists any more, because Redis keeps no empty list.
-- KEYS[1] dead_letter_queues, KEYS[2..] all lists of the queue. ARGV[1] name of the queue.
-- Returns 1, or 0 if the queue is not empty or not known. Bound: at most ten lists.
for at = 2, #KEYS do
  if redis.call('LLEN', KEYS[at]) > 0 then return 0 end
end
return redis.call('HDEL', KEYS[1], ARGV[1])
