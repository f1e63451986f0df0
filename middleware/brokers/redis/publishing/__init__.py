"""A producer's channel on Redis: it publishes and records, keeps a queue's bounds, purges, and compares the clock."""
