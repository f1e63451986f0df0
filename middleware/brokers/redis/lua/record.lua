-- Records what an operator did. KEYS[1] audit. ARGV[1] the record (JSON), ARGV[2] how many records are kept.
-- Its first write frees memory: a full server accepts the record, too.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[2])
return redis.call('XADD', KEYS[1], '*', 'record', ARGV[1])
