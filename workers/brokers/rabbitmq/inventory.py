"""The inventory of a RabbitMQ broker: delayed messages and dead letters, by task id.

It is read in the order in which messages flow: delay store first, dead-letter queues last. Events that are recorded meanwhile are
read at the end, and correct the rows.

Messages in ordinary queues are only counted, because reading a message on RabbitMQ counts as a delivery. With `look` they are
listed, too. Messages that a worker holds are not seen. So take an inventory for the books when the queues are empty. Limit: at most
`MAX_HELD` messages of each queue are listed, and the others are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.middleware.brokers.rabbitmq.journal.letter_look import await_looks, require_not_held
from redelivery.middleware.brokers.rabbitmq.names import BITS
from redelivery.middleware.brokers.rabbitmq.peek import MAX_HELD, Look, depth_of

from ...export.sightings import DEAD_LETTER, DELAYED, QUEUE
from ...letters import Contents, Letter
from .delay_store import AmqpDelayStore
from .outcome_log import Listening

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport

    from ...ports import Sightings


class AmqpInventory:
    """Implements `InventorySource` on RabbitMQ."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def walk(self, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str], *, look: bool) -> dict[str, int]:
        transport = self._transport
        with transport.connect() as connection:
            listening = Listening(connection, transport.keys)
            for waiting in AmqpDelayStore(transport).walk(connection):
                inventory.see(waiting.contents, waiting.queue, DELAYED, transport.now_ms(), due_ms=waiting.due_ms)
            for queue in queues if look else ():
                with Look(connection, queue, most=MAX_HELD) as looking:
                    for found in looking:
                        inventory.see(Contents.of(found.raw), queue, QUEUE, transport.now_ms())
            await_looks(connection)
            for name in letter_queues:
                require_not_held(connection, name)
                with Look(connection, name, most=MAX_HELD) as looking:
                    for letter in (Letter.of(found.raw) for found in looking):
                        inventory.see(letter, letter.queue or name, DEAD_LETTER, transport.now_ms())
                require_not_held(connection, name)  # a command that came meanwhile took the rest
            for event in listening.new_events():
                inventory.apply(event)
            levels = [transport.keys.level(bit) for bit in range(BITS)]
            beyond = unlisted(connection, [*levels, *letter_queues], MAX_HELD)
            return unlisted(connection, queues, MAX_HELD if look else 0) | beyond


def unlisted(connection: Connection, queues: Iterable[str], listed: int = 0) -> dict[str, int]:
    """Return how many messages each queue has beyond the `listed` ones, without queues that have no more."""
    counts = {queue: (depth_of(connection, queue) or 0) - listed for queue in queues}
    return {queue: count for queue, count in counts.items() if count > 0}
