-- Records what an operator did. KEYS[1] audit. ARGV[1] the record (JSON), ARGV[2] how many records are kept.
-- The first write frees memory, so that a full server accepts the record.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[2])
return redis.call('XADD', KEYS[1], '*', 'record', ARGV[1])
