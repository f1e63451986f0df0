"""The Lua scripts: one file, one transition; see `redelivery.middleware.brokers.redis.scripts`."""
