"""Tests of RabbitMQ."""
