"""The outcome events, and the names of outcomes and reasons.

An event records how one step of a message's life ended. On Redis it is one entry of a stream, written by the script that carries
out the step; its id is the entry's id, and its time the server's.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA_VERSION = 1
#: The end of the year 9999, the last that Python's dates have (milliseconds since the epoch).
LATEST_MS = 253_402_300_799_999


class Outcome(StrEnum):
    """How a step of a message's life ended."""

    PUBLISHED = "published"
    RECEIVED = "received"
    DEFERRED = "deferred"
    REDELIVERY_SCHEDULED = "redelivery_scheduled"
    SUCCEEDED = "succeeded"
    DEAD_LETTERED = "dead_lettered"
    DISCARDED = "discarded"
    EXPIRED = "expired"
    REVOKED = "revoked"
    IGNORED = "ignored"
    REDRIVEN = "redriven"
    PURGED = "purged"
    CANCELLED = "cancelled"
    UNOBSERVED = "unobserved"


#: Outcomes that end a life: no other event may follow in the same generation.
TERMINAL = frozenset(
    {
        Outcome.SUCCEEDED,
        Outcome.DEAD_LETTERED,
        Outcome.DISCARDED,
        Outcome.EXPIRED,
        Outcome.REVOKED,
        Outcome.IGNORED,
        Outcome.PURGED,
        Outcome.CANCELLED,
        Outcome.UNOBSERVED,
    },
)


class Reason(StrEnum):
    """Why a message died (RabbitMQ's word if it has one)."""

    EXHAUSTED = "exhausted"
    MAX_AGE = "max_age"
    NON_RETRYABLE = "non_retryable"
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LENGTH = "max_length"
    WORKER_LOST = "worker_lost"
    TIME_LIMIT = "time_limit"
    UNDECODABLE = "undecodable"
    UNKNOWN_TASK = "unknown_task"
    INVALID = "invalid"
    NOT_ELIGIBLE = "not_eligible"
    RESULT_NOT_STORED = "result_not_stored"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the outcome log.

    `task_id` and `generation` name the life. `attempt` is the delivery's number among those that count, from 1; `delivery` is its
    number among all deliveries. `delay_ms` is the requested delay, `due_ms` when it ends (milliseconds since the epoch). `at_ms` is
    when the event was recorded, by the clock that `clock` names: `broker` on Redis, `worker` elsewhere. `nesting` is Celery's
    `replaced_task_nesting`: a replaced task reuses its id.

    An event that ends an attempt has its start (`started_ms`), its run time (`run_ms`), how long its message waited before
    (`waited_ms`), and the worker's `release`. `actor` is the person behind an operator's step. Values that do not apply are empty
    or None; these five are also None if they are not known.
    """

    task_id: str
    outcome: str
    event_id: str = ""
    generation: int = 0
    task: str = ""
    queue: str = ""
    reason: str = ""
    attempt: int = 0
    delivery: int = 0
    delay_ms: int | None = None
    due_ms: int | None = None
    at_ms: int = 0
    clock: str = "broker"
    worker: str = ""
    exception: str = ""
    fingerprint: str = ""
    root_id: str = ""
    parent_id: str = ""
    nesting: int = 0
    schema_version: int = SCHEMA_VERSION
    started_ms: int | None = None
    run_ms: int | None = None
    waited_ms: int | None = None
    release: str | None = None
    actor: str | None = None

    def to_entry(self) -> list[str]:
        """The values of a stream entry, in the order of `ENTRY`."""
        return [
            self.task_id,
            self.outcome,
            _number(self.generation),
            self.task,
            self.queue,
            self.reason,
            _number(self.attempt),
            _number(self.delivery),
            _number(self.delay_ms),
            _number(self.due_ms),
            self.worker,
            self.exception,
            self.fingerprint,
            "" if self.root_id == self.task_id else self.root_id,
            self.parent_id,
            _number(self.nesting),
            _number(self.started_ms),
            _number(self.run_ms),
            _number(self.waited_ms),
            self.release or "",
            self.actor or "",
        ]

    @classmethod
    def from_entry(cls, entry_id: bytes | str, values: Mapping[Any, Any]) -> Self:
        """The event that a stream entry holds. Raises `EnvelopeError` if redelivery did not write the entry."""
        entry_id = entry_text(entry_id)
        read = {entry_text(key): entry_text(value) for key, value in values.items()}
        task_id, outcome = read.get("t", ""), read.get("o", "")
        if not task_id or outcome not in _OUTCOMES:
            msg = f"outcome log entry {entry_id} has no task id or no known outcome ({outcome!r}): it was not written by redelivery"
            raise EnvelopeError(msg)
        return cls(
            event_id=entry_id,
            task_id=task_id,
            outcome=outcome,
            generation=_integer(read.get("g")) or 0,
            task=read.get("n", ""),
            queue=read.get("q", ""),
            reason=read.get("r", ""),
            attempt=_integer(read.get("a")) or 0,
            delivery=_integer(read.get("d")) or 0,
            delay_ms=_integer(read.get("l")),
            due_ms=_integer(read.get("u")),
            at_ms=int(entry_id.partition("-")[0]),
            worker=read.get("w", ""),
            exception=read.get("x", ""),
            fingerprint=read.get("f", ""),
            root_id=read.get("R") or task_id,
            parent_id=read.get("p", ""),
            nesting=_integer(read.get("N")) or 0,
            started_ms=_integer(read.get("b")),
            run_ms=_integer(read.get("e")),
            waited_ms=_integer(read.get("W")),
            release=read.get("v") or None,
            actor=read.get("y") or None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as the books read the event."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


#: The short names of a stream entry's fields, in the order of `Event.to_entry`. They are always the same, so that Redis stores them
#: once for each block of entries.
ENTRY: tuple[str, ...] = (
    *("t", "o", "g", "n", "q", "r", "a", "d", "l", "u", "w", "x", "f", "R", "p", "N"),
    *("b", "e", "W", "v", "y"),
)
_OUTCOMES = frozenset(Outcome)
_LIMIT = 2**63


def _number(value: int | None) -> str:
    """The number as it is recorded; empty if it does not fit into 64 bits."""
    return str(int(value)) if isinstance(value, int) and -_LIMIT <= value < _LIMIT else ""


def _integer(value: str | None) -> int | None:
    if not value:
        return None
    try:
        return int(value)
    except ValueError as exc:
        msg = f"outcome log entry with {value[:40]!r} for a number: it was not written by redelivery"
        raise EnvelopeError(msg) from exc


def entry_text(value: bytes | str) -> str:
    """A part of a stream entry as text; redis-py returns bytes or text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def entries(raw: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> list[Event]:
    """The events in an answer of XRANGE or XREAD."""
    return [Event.from_entry(entry_id, values) for entry_id, values in raw]


class Numbering:
    """Gives ids to events if the broker gives none. A publisher's numbers have no gap, so that a lost event is noticed."""

    def __init__(self) -> None:
        self._pid = 0
        self._publisher = ""
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """The next id; a forked process is another publisher."""
        if self._pid != os.getpid():
            self._pid, self._publisher, self._numbers = os.getpid(), uuid.uuid4().hex[:12], itertools.count(1)
        return f"{time.time_ns() // 1_000_000}-{self._publisher}.{next(self._numbers)}"

    def begin_anew(self) -> None:
        """Become another publisher, so that an event that never arrived does not look lost."""
        self._pid = 0
