"""Redis and Valkey: each transition is one script."""
