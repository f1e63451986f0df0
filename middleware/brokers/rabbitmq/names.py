"""Every name that redelivery uses on a RabbitMQ broker. No other module builds names.

The delay store is built like kombu's native delayed delivery, but under our own prefix (kombu 5.6 has none). It has an exchange and
a queue for each bit of a delay in seconds. A delayed message is published to the exchange of its highest bit, with the routing key
`<28 bits>.<address>`. Each origin queue is bound to the last exchange with exactly 28 single-word wildcards before its address.
(With `#`, as in `#.orders`, a queue `orders` would also receive messages that waited for `eu.orders`.)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kombu.transport.native_delayed_delivery import MAX_NUMBER_OF_BITS_TO_USE, calculate_routing_key

from ...ports import Names

#: The outcome log's queue, and its binding key.
OUTCOMES = "redelivery.outcomes"
#: This exchange cannot be deleted. Publishing to a missing exchange would close a producer's channel, and lose messages that are
#: published meanwhile.
OUTCOMES_EXCHANGE = "amq.topic"
DELAY_PREFIX = "redelivery_delayed"
#: The prefix of recorded starts (`start_markers`).
START = "redelivery.start."
JOURNAL = "redelivery.journal"
AUDIT = "redelivery.audit"
BITS: int = MAX_NUMBER_OF_BITS_TO_USE
#: Seconds; each delay is shorter.
MAX_DELAY = 2**BITS
#: The most bytes of a queue's name that fit into a routing key after the bits (AMQP: 255 in all).
MAX_NAME = 190


@dataclass(frozen=True)
class AmqpNames(Names):
    """The names in a virtual host."""

    outcomes: str = OUTCOMES
    outcomes_exchange: str = OUTCOMES_EXCHANGE
    delay_prefix: str = DELAY_PREFIX
    journal: str = JOURNAL
    audit: str = AUDIT

    @property
    def delivery_exchange(self) -> str:
        """The exchange that delayed messages reach when they are due."""
        return f"{self.delay_prefix}_celery_delayed_delivery"

    def binding_of(self, queue: str) -> str:
        """The key that binds a queue to `delivery_exchange`."""
        return "*." * BITS + address(queue)

    def level(self, bit: int) -> str:
        """The name of the exchange and queue of this bit, where a message waits `2 ** bit` seconds if the bit is set."""
        return f"{self.delay_prefix}_celery_delayed_{bit}"

    @property
    def delays_declared(self) -> str:
        """An exchange that is only a mark: it is declared last, after the whole delay store."""
        return f"{self.delay_prefix}_declared"


def address(queue: str) -> str:
    """The end of a queue's routing key: its name, or a digest if the name is too long or has wildcards."""
    if len(queue.encode()) <= MAX_NAME and not {"*", "#"} & set(queue.split(".")):
        return queue
    return f"sha1-{hashlib.sha1(queue.encode(), usedforsecurity=False).hexdigest()}"


def delay_key(queue: str, seconds: int) -> str:
    """The routing key of a message that waits for this many seconds (1 or more) before it goes to `queue`."""
    return str(calculate_routing_key(seconds, address(queue)))
