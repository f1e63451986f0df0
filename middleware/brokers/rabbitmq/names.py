"""Every name that this project uses on a RabbitMQ broker: built here and nowhere else.

The delay store is built as kombu's native delayed delivery, under a prefix of our own (kombu 5.6 has no prefix): one exchange and
one queue for each bit of a delay in seconds. A delayed message is published to the exchange of the highest bit with the routing key
`<28 bits>.<address>`; each origin queue is bound to the last exchange with exactly 28 single-word wildcards before its address.
(With `#`, as in `#.orders`, a queue `orders` would also receive messages that waited for `eu.orders`.)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kombu.transport.native_delayed_delivery import MAX_NUMBER_OF_BITS_TO_USE, calculate_routing_key

from ...ports import Names

#: The outcome log's queue, and its binding key.
OUTCOMES = "redelivery.outcomes"
#: An exchange that every broker has and that cannot be deleted: publishing to a missing exchange closes a producer's channel, and
#: messages that are published meanwhile are lost.
OUTCOMES_EXCHANGE = "amq.topic"
DELAY_PREFIX = "redelivery_delayed"
#: The prefix of the queues that are recorded starts (`start_markers`).
START = "redelivery.start."
#: The journal of moves (`journal`).
JOURNAL = "redelivery.journal"
#: What operators did.
AUDIT = "redelivery.audit"
BITS: int = MAX_NUMBER_OF_BITS_TO_USE
#: Seconds: each delay is shorter.
MAX_DELAY = 2**BITS
#: Bytes of a queue's name that fit into a routing key, after the bits (AMQP: 255 in all).
MAX_NAME = 190


@dataclass(frozen=True)
class AmqpNames(Names):
    """The names, on one virtual host: there is one set of them in each."""

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
        """The exchange, and the queue, in which a message waits `2 ** bit` seconds if that bit of its delay is set."""
        return f"{self.delay_prefix}_celery_delayed_{bit}"

    @property
    def delays_declared(self) -> str:
        """An exchange that is only a mark: if it exists, the whole delay store has been declared."""
        return f"{self.delay_prefix}_declared"


def address(queue: str) -> str:
    """A queue's name at the end of a routing key, or its digest if the name is too long or has wildcards."""
    if len(queue.encode()) <= MAX_NAME and not {"*", "#"} & set(queue.split(".")):
        return queue
    return f"sha1-{hashlib.sha1(queue.encode(), usedforsecurity=False).hexdigest()}"


def delay_key(queue: str, seconds: int) -> str:
    """The routing key of a message that waits so many whole seconds, 1 or more, before it goes to `queue`."""
    return str(calculate_routing_key(seconds, address(queue)))
