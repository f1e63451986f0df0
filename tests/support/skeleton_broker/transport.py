"""The skeleton's transitions. Each is one transaction that moves the message and records its event, both or neither.

The broker has no leases, and delayed messages wait in a worker: `WithoutLeases` and `Claim` implement that.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.deliveries import Claim, WithoutLeases
from redelivery.middleware.brokers.kombu.generic import QueueNames, held_until
from redelivery.middleware.messages.events import Numbering
from redelivery.middleware.ports import Answer, Capability, Held, TaskResult
from tests.support.skeleton_broker.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery import Celery
    from celery.worker.consumer import Consumer

    from redelivery.middleware.messages.events import Event
    from redelivery.middleware.policy.resolver import Pace
    from redelivery.middleware.ports import Session

__all__ = ["SkeletonTransport"]


class SkeletonClaim(Claim):
    """The messages that one worker holds. A tag is the token of the connection and the number of the message."""

    _acknowledge: dict[str, Callable[[], None]]

    def attach(self) -> None:
        """Begin anew after a connect: the messages of the last connection have been given back."""
        self.token, self._acknowledge = uuid.uuid4().hex[:12], {}
        self.held.clear()

    def take(self, message: Any) -> Held | None:
        if not hasattr(message, "raw"):
            return None
        tag = f"{self.token}.{message.delivery_tag}"
        message.held = self.held[tag] = Held(tag, message.queue, message.queue, message.raw, self.now_ms())
        self._acknowledge[tag] = message.ack
        return self.held[tag]

    def settle(self, tag: str) -> None:
        """The message has left. kombu may reuse its place in the prefetch window."""
        if tag in self._acknowledge:
            self._acknowledge.pop(tag)()


class SkeletonTransport(WithoutLeases):
    """The broker of one app."""

    #: A capability that is missing here is refused, or replaced as the documents say.
    capabilities = frozenset({Capability.ATOMIC_MOVES, Capability.EXACT_DELAYS, Capability.DEAD_LETTER_QUEUES})
    redeliveries: None = None

    def __init__(self, app: Celery) -> None:
        self.app, self.keys = app, QueueNames()
        self.tables = Tables(app.conf.broker_transport_options["file"])
        self.claim: SkeletonClaim | None = None
        self._numbers = Numbering()

    # the worker's side

    @property
    def session(self) -> Session:
        return self

    def claim_for(self, worker: str) -> SkeletonClaim:
        self.claim = SkeletonClaim(self, worker)
        return self.claim

    def attach(self, consumer: Consumer) -> None:  # noqa: ARG002 - another broker declares here what its queues need
        assert self.claim is not None
        self.claim.attach()

    def drain(self, seconds: float) -> int:  # noqa: ARG002 - what is answered here has been done
        return 0

    def has_queue(self, name: str) -> bool:  # noqa: ARG002 - any name is a queue
        return True

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        """Warn of nothing: this broker never ends a message by itself."""

    def is_transient(self, exc: BaseException) -> bool:
        return isinstance(exc, sqlite3.OperationalError)  # locked for too long, or the file is missing

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def close(self) -> None:
        self.tables.close()

    # the moves

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:  # noqa: ARG002 - no `FastPath`
        return self._move(tag, event)

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,  # noqa: ARG002 - a broker that lists what waits looks it up by this
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,  # noqa: ARG002 - without `HEAD_OF_QUEUE`
        pace: Pace | None = None,  # noqa: ARG002 - without `REDELIVERY_BUDGETS`
    ) -> Answer:
        now_ms = self.now_ms()
        due_ms = now_ms + (delay_ms or 0) if due_ms is None else due_ms
        return self._move(tag, event, list_name, held_until(message, due_ms if due_ms > now_ms else None))

    def dead_letter(
        self,
        tag: str,
        message: bytes,
        *,
        dead_letter_queue: str,
        queue: str,  # noqa: ARG002 - a broker that notes where letters came from writes it down
        event: Event | None,
        must_exist: bool = False,  # noqa: ARG002 - any name is a queue
    ) -> Answer:
        return self._move(tag, event, dead_letter_queue, message)

    def start(self, tag: str) -> Answer:
        return Answer.DONE if self.claim is None or self.claim.holds(tag) else Answer.REFUSED

    def release(self, held: Sequence[Held]) -> int:
        for each in held:
            self.tables.give_back(_number(each.tag))
        return len(held)

    def _move(self, tag: str, event: Event | None, queue: str = "", message: bytes | None = None) -> Answer:
        if self.claim is not None and not self.claim.holds(tag):
            return Answer.REFUSED  # its connection is gone, and the message was given back
        if event is not None:
            event = replace(event, event_id=self._numbers.next_id(), at_ms=self.now_ms(), clock="worker")
        is_done = self.tables.move(_number(tag) if tag else None, event, queue, message)
        if self.claim is not None:
            self.claim.settle(tag)
        return Answer.DONE if is_done else Answer.ALREADY


def _number(tag: str) -> int:
    return int(tag.rpartition(".")[2])
