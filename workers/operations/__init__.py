"""What operators look at and change: dead letters, delayed messages, workers, metrics, and the doctor."""
