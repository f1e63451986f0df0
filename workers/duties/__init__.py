"""What a worker does in addition to its tasks, in its own threads."""
