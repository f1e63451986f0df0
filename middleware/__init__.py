"""What happens to one message inside a worker: its arrival, its attempts, what is decided, how it leaves."""
