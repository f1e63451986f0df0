"""The dispatcher: moves delayed messages that are due to their queues, never early.

Any number may run: one in every worker by default, or a separate process (`redelivery dispatcher`). One leads, by a lease on the
broker, and the others stand by. The leader sleeps until the next message is due, and wakes when an earlier one arrives. A message
is due by the broker's clock. Two leaders at once would only share the work: one script moves a message, once.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from redelivery.middleware.logs import log

from .duty import Duty

if TYPE_CHECKING:
    from redelivery.middleware.brokers.redis.transport import RedisTransport

#: Seconds that the lead lasts without a renewal, and the longest sleep of the dispatcher.
LEAD = 5.0
MAX_SLEEP = 1.0
BATCH = 500


class Dispatcher(Duty):
    """One dispatcher. A leader's step lasts until it is stopped, another one leads, or the broker does not answer."""

    title = "dispatcher"
    line_if_unanswered = "warning", "dispatcher.waiting"
    line_if_failed = "error", "dispatcher.failed"
    begins_at_once = True

    def __init__(self, transport: RedisTransport, *, standing_by: float = MAX_SLEEP) -> None:
        """`standing_by`: seconds between two tries to lead, without a `wake`."""
        super().__init__(standing_by)
        self._transport, self._standing_by = transport, standing_by
        self._token = uuid.uuid4().hex
        self._leads = False

    def leads(self) -> bool:
        """Whether this dispatcher leads, by a lease on the broker."""
        leads = self._transport.leases.lead(self._transport.keys.dispatcher, self._token, LEAD)
        if leads and not self._leads:
            log.info("dispatcher.leads")
        self._leads, self._every = leads, MAX_SLEEP if leads else self._standing_by
        return leads

    def step(self) -> None:
        """Dispatch until stopped (then give the lead up), or until another one leads. Raises the broker's errors."""
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
    """Wait `seconds`, or until a message arrives that is due earlier."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        message = wake.get_message(timeout=left)
        if message is not None and message["type"] == "message":
            return
