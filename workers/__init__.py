"""A worker's background duties, the tools for operators, and the batch job."""
