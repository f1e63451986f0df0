"""How a message waits on RabbitMQ: which level of the delay store it is published to, and under which key.

A wait of 2**28 seconds (eight years and a half) or more has no bits: the message waits for the longest there is, and bears no
mark then that its ETA has been waited for, so that the worker to which it comes lets it wait for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...messages.envelope import HEADER, Envelope
from ...messages.steps import opened, sealed
from .names import MAX_DELAY, delay_key

if TYPE_CHECKING:
    from .names import AmqpNames


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message on its way to the delay store: its bytes, its target (exchange, routing key), and for how many seconds."""

    message: bytes
    target: tuple[str, str]
    seconds: int


def waiting(names: AmqpNames, queue: str, message: bytes, wait_ms: float) -> Waiting | None:
    """How this message waits before it goes to `queue`; None where it need not."""
    wanted = math.ceil(wait_ms / 1000)
    if wanted <= 0:
        return None
    seconds = min(wanted, MAX_DELAY - 1)
    target = (names.level(seconds.bit_length() - 1), delay_key(queue, seconds))
    return Waiting(message if seconds == wanted else _for_a_part(message), target, seconds)


def _for_a_part(message: bytes) -> bytes:
    """The message, whose wait will not be over when it comes out."""
    raw = opened(message)
    header = replace(Envelope.of(raw["headers"]), served_eta=None).to_header()
    return sealed({**raw, "headers": {**raw["headers"], HEADER: header}})
