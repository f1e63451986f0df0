"""The owner: one worker's claim on the messages that it holds.

A worker takes a token when its consumer starts, and holds every message under a tag `<token>:<counter>`. `workers.duties.lease`
renews its lease, and meanwhile no other worker touches these messages. If another worker sees that the lease is not renewed, it
fences the token: then this worker's transitions are refused, and it goes on under a new token.
"""

from __future__ import annotations

import os
import threading
import uuid
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from ....logs import log
from ....messages.steps import sealed
from ....ports import Held
from ..keys import Keys
from .server_clock import ServerClock

if TYPE_CHECKING:
    from ....ports import Answer, Lease
    from ..transport import RedisTransport


class Owner:
    """The messages that this worker holds (`Deliveries`)."""

    def __init__(self, transport: RedisTransport, worker: str) -> None:
        self.transport = transport
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.token = ""
        self.calls = 0
        self._clock = ServerClock()
        self._beginning = threading.Lock()

    @property
    def lease(self) -> Lease:
        return self

    def begin(self, instead_of: str) -> None:
        """Take a new token instead of a lost one, and open its lease. Does nothing if another thread has already done so.

        If the registration gets no answer, the new token holds nothing, and its lease ends because it is not renewed.
        """
        with self._beginning:
            if self.token != instead_of:
                return
            token = uuid.uuid4().hex
            about = {"worker": self.worker, "pid": os.getpid(), "since": self.transport.now_ms()}
            self.transport.leases.register(token, about, lost=instead_of)
            self.calls = 0
            self.token = token

    def is_alive(self) -> bool:
        return bool(self.token) and self.transport.leases.renew(self.token) is not None

    def holds(self, tag: str) -> bool:
        """Whether this tag has the owner's current token, or is kombu's own, without a token."""
        return tag.startswith(self.token) or not self.has_minted(tag)

    def take(self, message: Any) -> Held | None:
        """Hold a message that kombu's own receive took and recorded; None if it does not come from a task queue.

        This is weaker than our receive: a crash between kombu's two steps loses the message. A dead worker's messages come back
        only after kombu's visibility timeout (an hour by default). A message whose task runs for longer comes back, too.
        """
        channel, queue = message.channel, getattr(message, "queue", None)
        if queue is None:
            return None
        keys, payload, tag = Keys.of(channel), message._raw, str(message.delivery_tag)  # noqa: SLF001 - the payload as it came
        list_name = keys.list_name(queue, channel._get_message_priority(payload, reverse=False))  # noqa: SLF001 - as kombu's `_put`
        held = Held(tag, queue, list_name, sealed(payload), self.now_ms())
        held.release_credit = channel._credit(tag)  # noqa: SLF001 - our channel's
        self.held[tag] = message.held = held
        return held

    def part(self) -> None:
        self.transport.leases.unregister(self.token)

    def accept(self, tag: str) -> Answer:
        return self.transport.accept(tag)

    def has_minted(self, tag: str) -> bool:
        return ":" in tag

    def saw_server_time(self, now_ms: int) -> None:
        self._clock.observe(now_ms)

    def now_ms(self) -> int:
        """The server's time; a call is made only the first time. This machine's own clock is not used."""
        if not self._clock.is_known:
            self.saw_server_time(self.transport.now_ms())
        return self._clock.now_ms()

    def drop(self, tag: str) -> None:
        held = self.held.get(tag)
        if held is not None:
            held.make_room()
            self.held.pop(tag, None)
            held.leave()

    def release(self, keep: set[str]) -> int:
        """Give back all messages that this owner holds on the broker, even those that it has never seen, except `keep`."""
        given: dict[str, Held] = {each.tag: each for each in self.transport.leases.held_by(self.token) if each.tag not in keep}
        count = 0
        tags = list(given)
        for at in range(0, len(tags), 500):
            page = tags[at : at + 500]
            try:
                count += self.transport.release([given[tag] for tag in page])
            except ResponseError as exc:
                log.error("release.refused", error=str(exc), why="these messages stay held until the lease ends")
                continue
            for tag in page:
                self.held.pop(tag, None)
        return count
