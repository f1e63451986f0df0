"""How a worker receives from Redis: its owner, its channel, and when the channel asks for messages."""
