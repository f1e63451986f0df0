"""The dispatcher: moves delayed messages that are due to their queues, never early.

Any number may run: one in every worker by default, or one alone (`redelivery dispatcher`). One leads, by a lease on the broker, and
the others stand by. The leader sleeps until the next message is due, and is woken when an earlier one arrives. The broker's clock
decides whether a message is due. Two leaders at once would only share the work: one script moves a message, once.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log

from .duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: How long the lead lasts without being renewed, and how long the dispatcher sleeps at most (seconds).
LEAD = 5.0
MAX_SLEEP = 1.0
BATCH = 500


class Dispatcher(Duty):
    """One dispatcher. A step of the leader lasts until it is stopped, another one leads, or the broker does not answer."""

    title = "dispatcher"
    line_if_unanswered = "warning", "dispatcher.waiting"
    line_if_failed = "error", "dispatcher.failed"
    begins_at_once = True

    def __init__(self, transport: RedisTransport, *, standing_by: float = MAX_SLEEP) -> None:
        """`standing_by`: seconds between two tries to lead, if nobody calls `wake`."""
        super().__init__(standing_by)
        self._transport, self._standing_by = transport, standing_by
        self._token = uuid.uuid4().hex
        self._leads = False

    def leads(self) -> bool:
        """Whether this dispatcher leads: one does, by a lease on the broker."""
        leads = self._transport.leases.lead(self._transport.keys.dispatcher, self._token, LEAD)
        if leads and not self._leads:
            log.info("dispatcher.leads")
        self._leads, self._every = leads, MAX_SLEEP if leads else self._standing_by
        return leads

    def step(self) -> None:
        """Dispatch until stopped (then give the lead up), or until another one leads. Raises whatever the broker does.

        Only the leader is woken when a message arrives that is due earlier.
        """
        with self._transport.client.pubsub() as wake:
            wake.subscribe(self._transport.keys.wake)
            while not self._stopped.is_set() and self.leads():
                moved, missing, next_due = self._transport.stores.promote(BATCH)
                if missing:
                    log.error("delayed.missing", count=missing, why="the delay store lists messages that it does not hold")
                if moved and next_due == 0:
                    continue
                _wait(wake, MAX_SLEEP if next_due is None else min(next_due, MAX_SLEEP))
        if self._leads:
            self._transport.leases.resign(self._transport.keys.dispatcher, self._token)


def _wait(wake: Any, seconds: float) -> None:
    """Wait until a message arrives that is due earlier, or this long."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        message = wake.get_message(timeout=left)
        if message is not None and message["type"] == "message":
            return
