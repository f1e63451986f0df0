"""The inventory of a RabbitMQ broker: what waits in the delay store, and what is dead, by its task id.

Enters: the broker, which goes on working. Leaves: the same rows as on Redis, in the order in which messages flow: delay store
first, dead-letter queues last; and how many messages were counted and not listed. What was recorded meanwhile is heard beside the
walk, and corrects it.

A message that waits to be run is counted and not listed: RabbitMQ shows it to nobody who does not take it, and having been taken
counts as a delivery of it. `look` says that this may be: then they are listed as well. What a worker holds is not seen at all.
So an inventory for the books is best taken when the queues are empty: then nothing is unlisted, and every row is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...export.sightings import DEAD_LETTER, DELAYED, QUEUE, Inventory
from ...letters import Contents, Letter
from .delay_store import AmqpDelayStore
from .outcome_log import Listening
from .peek import Look, depth_of

if TYPE_CHECKING:
    from kombu import Connection

    from redelivery.middleware.brokers.rabbitmq.transport import AmqpTransport


def take(
    transport: AmqpTransport, queues: list[str], letter_queues: list[str], *, look: bool = False
) -> tuple[Inventory, dict[str, int]]:
    """Walk the broker; the inventory, and the queues that hold messages which it does not list, with their numbers."""
    inventory = Inventory()
    with transport.connect() as connection:
        listening = Listening(connection, transport.keys)
        for waiting in AmqpDelayStore(transport).walk(connection):
            inventory.see(waiting.contents, waiting.queue, DELAYED, transport.now_ms(), due_ms=waiting.due_ms)
        if look:
            for queue in queues:
                _look(connection, transport, inventory, queue)
        for name in letter_queues:
            _letters(connection, transport, inventory, name)
        for event in listening.heard():
            inventory.hear(event)
        left = {} if look else unlisted(connection, queues)
    return inventory, left


def unlisted(connection: Connection, queues: list[str]) -> dict[str, int]:
    """How many messages wait in each of these queues; those without one are left out."""
    counts = {queue: depth_of(connection, queue) or 0 for queue in queues}
    return {queue: count for queue, count in counts.items() if count}


def _look(connection: Connection, transport: AmqpTransport, inventory: Inventory, queue: str) -> None:
    with Look(connection, queue) as look:
        for found in look:
            inventory.see(Contents.of(found.raw), queue, QUEUE, transport.now_ms())


def _letters(connection: Connection, transport: AmqpTransport, inventory: Inventory, name: str) -> None:
    with Look(connection, name) as look:
        for found in look:
            letter = Letter.of(found.raw)
            inventory.see(letter, letter.queue or name, DEAD_LETTER, transport.now_ms())
