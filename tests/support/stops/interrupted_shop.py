"""The tests' app. It gets SIGQUIT at its first request about a recorded start, while that connection to RabbitMQ is in use."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.rabbitmq.consuming import start_markers as amqp_starts
from tests.support.shop import app

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

#: The processes that have got the signal.
TOLD: set[int] = set()


def interrupted(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Send the signal before the call. Python runs its handler before the next line."""

    def asks(*args: Any) -> Any:
        if os.getpid() not in TOLD:
            TOLD.add(os.getpid())
            os.kill(os.getpid(), signal.SIGQUIT)
        return ask(*args)

    return asks


for name in ("declare_start", "has_queue"):
    setattr(amqp_starts, name, interrupted(getattr(amqp_starts, name)))
