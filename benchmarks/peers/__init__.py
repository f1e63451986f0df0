"""The peers: other task queues on the same kind of broker, as their own manuals start them."""
