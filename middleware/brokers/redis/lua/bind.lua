-- Binds a queue on a full server, so that a worker can connect and empty the queue. The first write frees memory.
-- KEYS[1] kombu's binding table of the exchange. ARGV[1] the table's member for the queue.
-- Returns 1. Bound: constant.
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[1], ARGV[1])
return 1
