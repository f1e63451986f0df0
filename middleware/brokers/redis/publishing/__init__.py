"""A producer's channel on Redis: publishes and records, keeps a queue's bounds, purges, and compares the clock."""
