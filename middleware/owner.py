"""The owner: one worker's claim on the messages it holds.

A worker takes a token when its consumer starts, and holds every message under a tag `<token>:<counter>`. While its lease is renewed
(by `workers.lease`, from a native thread), nobody else touches them. Once another worker has seen the lease stand still, the token
is fenced: what this worker then asks for is refused, and it goes on under a new token.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redelivery.middleware.transports.base import Held
    from redelivery.middleware.transports.redis import RedisTransport

__all__ = ["Owner"]


class Owner:
    """Who holds what. `held` maps tag → message from its receipt until its transition has been answered."""

    def __init__(self, transport: RedisTransport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""
        self.calls = 0
        self._offset_ms = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Take a new token, and open its lease."""
        token = uuid.uuid4().hex
        self.transport.register(token, {"worker": self.worker, "pid": os.getpid(), "since": self.transport.now_ms()})
        with self._lock:
            self.token, self.calls = token, 0

    def is_alive(self) -> bool:
        """Renew the lease; False where the token has been fenced."""
        return bool(self.token) and self.transport.renew(self.token)

    def holds(self, tag: str) -> bool:
        """Whether this tag was minted under the token that the owner has now."""
        return tag.startswith(self.token)

    def saw_server_time(self, now_ms: int) -> None:
        """Remember what the server's clock said just now."""
        self._offset_ms = now_ms - time.monotonic() * 1000

    def now_ms(self) -> int:
        """The server's time, as far as this worker can tell without asking; its own clock is not looked at."""
        if not self._offset_ms:
            self.saw_server_time(self.transport.now_ms())
        return int(time.monotonic() * 1000 + self._offset_ms)

    def drop(self, tag: str) -> None:
        """Its transition has been answered: the message is no longer held."""
        held = self.held.pop(tag, None)
        if held is not None:
            held.release_credit()

    def release(self, keep: set[str]) -> int:
        """Give back, uncounted, whatever the broker says this owner holds, but for the tags to `keep`. Returns how many went back.

        This includes a batch whose reply was lost on its way, which no living part of this worker has ever seen.
        """
        given: dict[str, Held] = {each.tag: each for each in self.transport.held_by(self.token) if each.tag not in keep}
        count = 0
        tags = list(given)
        for at in range(0, len(tags), 500):
            count += self.transport.release([given[tag] for tag in tags[at : at + 500]])
        for tag in given:
            self.held.pop(tag, None)
        return count
