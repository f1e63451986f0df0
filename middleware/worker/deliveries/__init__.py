"""The deliveries that a worker holds: how each of them ends, whose task ran, was only observed, or handled a dead letter."""
