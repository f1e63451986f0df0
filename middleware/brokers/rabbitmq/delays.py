"""How a message waits on RabbitMQ: the level of the delay store that it is published to, and its key.

The delay store has no bits for 2**28 seconds (eight and a half years) or more. Such a message first waits for the longest possible
time, without the mark that its ETA was served; the worker that receives it lets it wait for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...messages.steps import opened, sealed, unserved
from .names import MAX_DELAY, delay_key

if TYPE_CHECKING:
    from .names import AmqpNames


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message for the delay store: its bytes, its target (exchange, routing key), and its delay in seconds."""

    message: bytes
    target: tuple[str, str]
    seconds: int


def waiting(names: AmqpNames, queue: str, message: bytes, wait_ms: float) -> Waiting | None:
    """How this message waits before it goes to `queue`; None if it need not wait."""
    wanted = math.ceil(wait_ms / 1000)
    if wanted <= 0:
        return None
    seconds = min(wanted, MAX_DELAY - 1)
    target = (names.level(seconds.bit_length() - 1), delay_key(queue, seconds))
    return Waiting(message if seconds == wanted else sealed(unserved(opened(message))), target, seconds)
