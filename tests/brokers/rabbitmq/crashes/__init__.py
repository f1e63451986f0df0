"""Tests of RabbitMQ when something dies or goes wrong."""
