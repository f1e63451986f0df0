"""The tests' app with the queues of `amqp_queues`."""

from __future__ import annotations

from tests.support.rabbitmq.amqp_queues import configure
from tests.support.shop import app

__all__ = ["app"]

configure(app)
