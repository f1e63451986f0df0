"""What a worker does beside its tasks, in threads of its own."""
