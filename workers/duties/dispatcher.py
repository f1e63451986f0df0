"""The dispatcher: moves delayed messages that are due to their queues, never early.

Any number may run, one in every worker by default, or alone (`redelivery dispatcher`); one leads, by a lease on the broker, and the
others stand by. It sleeps until the next message is due, and is woken when something earlier arrives. Whether a message is due is
the server's clock's word. Two leaders at once would only share the work: a message is moved by one script, once.
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
    """One dispatcher. A step of it lasts until it is stopped, or the broker does not answer."""

    title = "dispatcher"
    line_if_unanswered = "warning", "dispatcher.waiting"
    line_if_failed = "error", "dispatcher.failed"
    begins_at_once = True

    def __init__(self, transport: RedisTransport) -> None:
        super().__init__(MAX_SLEEP)
        self._transport = transport
        self._token = uuid.uuid4().hex
        self._leads = False

    def step(self) -> None:
        """Dispatch until stopped, then hand the lead on. Raises whatever the broker does."""
        client, keys = self._transport.client, self._transport.keys
        with client.pubsub() as wake:
            wake.subscribe(keys.wake)
            while not self._stopped.is_set():
                if not self._lead():
                    self._stopped.wait(MAX_SLEEP)
                    continue
                moved, missing, next_due = self._transport.stores.promote(BATCH)
                if missing:
                    log.error("delayed.missing", count=missing, why="the delay store lists messages that it does not hold")
                if moved and next_due == 0:
                    continue
                _wait(wake, MAX_SLEEP if next_due is None else min(next_due, MAX_SLEEP))
            self._resign()

    def _lead(self) -> bool:
        leads = self._transport.leases.lead(self._transport.keys.dispatcher, self._token, LEAD)
        if leads and not self._leads:
            log.info("dispatcher.leads")
        self._leads = leads
        return leads

    def _resign(self) -> None:
        if self._leads:
            self._transport.leases.resign(self._transport.keys.dispatcher, self._token)


def _wait(wake: Any, seconds: float) -> None:
    """Until something earlier became due, or this long."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        message = wake.get_message(timeout=left)
        if message is not None and message["type"] == "message":
            return
