"""The peers: other task queues on the same kind of broker, started as their manuals say."""
