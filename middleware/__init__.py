"""What happens to one message inside a worker: arrival, attempt, decision, departure."""
