"""Tests of what is looked at when a worker on RabbitMQ starts."""
