"""The same on RabbitMQ: its boundaries, its fleet, its faults, and the account of a run, which names what ended twice."""
