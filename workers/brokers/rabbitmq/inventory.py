"""The inventory of a RabbitMQ broker: delayed messages and dead letters, by task id.

It is read in the order in which messages flow: delay store first, dead-letter queues last. Events that are recorded meanwhile are
received at the end, and correct the rows.

A message that waits to be run is counted and not listed: RabbitMQ shows a message only to a client that takes it, and taking it
counts as a delivery. With `look`, this is accepted, and they are listed, too. Messages that a worker holds are not seen at all. So
an inventory for the books is best taken when the queues are empty: then no message is unlisted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.middleware.brokers.rabbitmq.journal.letter_look import await_looks
from redelivery.middleware.brokers.rabbitmq.peek import Look, depth_of

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
    """See `InventorySource`."""

    def __init__(self, transport: AmqpTransport) -> None:
        self._transport = transport

    def walk(self, inventory: Sightings, queues: Collection[str], letter_queues: Collection[str], *, look: bool) -> dict[str, int]:
        transport = self._transport
        with transport.connect() as connection:
            listening = Listening(connection, transport.keys)
            for waiting in AmqpDelayStore(transport).walk(connection):
                inventory.see(waiting.contents, waiting.queue, DELAYED, transport.now_ms(), due_ms=waiting.due_ms)
            for queue in queues if look else ():
                with Look(connection, queue) as looking:
                    for found in looking:
                        inventory.see(Contents.of(found.raw), queue, QUEUE, transport.now_ms())
            await_looks(connection)
            for name in letter_queues:
                with Look(connection, name) as looking:
                    for letter in (Letter.of(found.raw) for found in looking):
                        inventory.see(letter, letter.queue or name, DEAD_LETTER, transport.now_ms())
            for event in listening.heard():
                inventory.hear(event)
            return {} if look else unlisted(connection, queues)


def unlisted(connection: Connection, queues: Iterable[str]) -> dict[str, int]:
    """How many messages wait in each of these queues, without the empty ones."""
    counts = {queue: depth_of(connection, queue) or 0 for queue in queues}
    return {queue: count for queue, count in counts.items() if count}
