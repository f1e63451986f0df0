"""A worker's main process: takes deliveries in, hands them to the pool, and ends them."""
