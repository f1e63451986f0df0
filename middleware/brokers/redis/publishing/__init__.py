"""What a producer's channel does on Redis: publish and record, keep a queue's bounds, purge, compare the clock."""
