"""The model of the Redis scripts: where each message must be after each step."""
