"""The inventory: every message that the broker holds, a row for each life, and none for what has ended.

`queue` is the life's: its first, by the message's header; without one, the one that it is in or goes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...brokers.broker import broker_of, needed
from ...export.sightings import Inventory
from ..letters import dead_letters

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime


def take(runtime: Runtime, *, look: bool = False) -> Inventory:
    """Walk the broker, which goes on working. Raises what it does.

    `look` allows a look at messages that counts as a delivery of each, where the broker has no other.
    """
    inventory, letter_queues = Inventory(), dead_letters.known(runtime)
    queues = sorted(set(runtime.app.amqp.queues) - set(letter_queues))
    inventory.unlisted = needed(broker_of(runtime.transport).inventory).walk(inventory, queues, letter_queues, look=look)
    return inventory
