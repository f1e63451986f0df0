"""What runs beside or after: duties of a worker, operator tools, and the batch job."""
