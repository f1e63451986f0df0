"""Tests of what a worker on RabbitMQ checks when it starts."""
