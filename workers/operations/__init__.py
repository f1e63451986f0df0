"""What operators read and change: dead letters, delayed messages, workers, metrics, and the doctor."""
