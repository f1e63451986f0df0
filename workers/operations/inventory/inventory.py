"""Takes the inventory: every message that the broker holds, one row for each life. A life that has ended has no row.

A row's `queue` is the life's first queue from the message's header; without a header, the queue that the message is in or goes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...brokers.broker import broker_of
from ...export.sightings import Inventory
from ..letters import dead_letters

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def take(runtime: Runtime, *, look: bool = False) -> Inventory:
    """Read all messages of the broker while it goes on working. Raises the errors of its driver.

    `look` allows reading that counts as a delivery of each message, if the broker has no other way.
    """
    inventory, letter_queues = Inventory(), dead_letters.known(runtime)
    queues = sorted(set(runtime.app.amqp.queues) - set(letter_queues))
    inventory.unlisted = broker_of(runtime.transport).inventory.walk(inventory, queues, letter_queues, look=look)
    return inventory
