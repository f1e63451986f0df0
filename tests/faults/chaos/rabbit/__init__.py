"""Chaos runs on RabbitMQ: boundaries, fleet, faults, and the account of a run, which names what ended twice."""
