"""What the pytest plugin (`redelivery.testing`) is made of: a broker, a worker, time moved on by hand, what died, what happened."""
