"""The tests' app on RabbitMQ. Its worker notes each message that it encodes as bytes."""

from __future__ import annotations

from typing import Any

from redelivery.middleware.brokers.rabbitmq.consuming import deliveries
from redelivery.middleware.brokers.rabbitmq.messages import envelope_of
from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


def noted(message: Any, **where: Any) -> bytes:
    """Encode the message, and note it."""
    note(message.properties["application_headers"]["id"], made=True)
    return envelope_of(message, **where)


vars(deliveries)["envelope_of"] = noted
