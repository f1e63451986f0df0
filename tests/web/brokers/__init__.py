"""Tests of the page on RabbitMQ, and on a broker that is slow, full or away."""
