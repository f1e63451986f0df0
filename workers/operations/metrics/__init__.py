"""The metrics of the broker and of a worker, and the server that Prometheus scrapes."""
