"""The parts of the pytest plugin (`redelivery.testing`): a broker, a worker, a clock to advance, dead letters and outcomes."""
