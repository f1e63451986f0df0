"""The Lua scripts, one file for each transition. `redelivery.middleware.brokers.redis.scripts` loads them."""
