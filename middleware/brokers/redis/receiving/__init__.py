"""How a worker receives from Redis: its owner, the channel that asks, and when it asks."""
