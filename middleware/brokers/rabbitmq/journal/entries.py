"""The entries of the journal of moves. They name messages by digests, and tell how a move went.

A digest stands for one delivery of one message from one queue. It is made of the message's id, its body and our headers, without
the headers that the broker adds when it delivers a message again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING

import amqp

from redelivery.errors import EnvelopeError

from ....messages.envelope import HEADER, RELEASED, Envelope, count
from ....messages.events import Outcome
from ....messages.steps import Raw, opened
from ..events import events_of, packed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ....messages.events import Event

#: Bytes of a digest.
DIGEST = 16
#: The message's digest, the successor's digest, and the successor's delay in seconds.
MOVING = Struct(f">{DIGEST}s{DIGEST}sI")
#: The kinds of entries: their first bytes.
MARKER, HAS_MOVED, IS_UNRECORDED, IS_MOVING, HAS_ENDED, IS_TURNING, HAS_STAYED = b"?", b"d", b"u", b"g", b"h", b"l", b"s"
#: The longest delay, in seconds, of a successor that a reader waits for.
MAX_DELAY = 60
#: Outcomes of moves that end or begin a life.
TURNS = frozenset({Outcome.DEAD_LETTERED, Outcome.REDRIVEN})


def digest_of(message: bytes, queue: str) -> bytes:
    """The digest of a message (an envelope's bytes) as it is delivered from this queue."""
    return _digest(opened(message), queue)


def _digest(message: Raw, queue: str) -> bytes:
    headers = message["headers"]
    said = [headers.get(name) for name in ("id", "replaced_task_nesting", HEADER, RELEASED)]
    known = [queue, *said, message.get("body")]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).digest()[:DIGEST]


@dataclass(frozen=True, slots=True)
class Moved:
    """A move for the journal: the digests of the message and its successor, and the successor's delay in seconds.

    `successor` is empty if the message is removed for good. `dead_letter_queue` is the target of a dead letter, otherwise empty.
    `events` are the events that a reader has to record, with their ids. `at_ms` is when the entry was written.
    """

    digest: bytes
    successor: bytes = b""
    seconds: int = 0
    dead_letter_queue: str = ""
    events: tuple[Event, ...] = ()
    at_ms: int = 0

    @property
    def is_turn(self) -> bool:
        return bool(self.dead_letter_queue or self.events)

    @property
    def moving(self) -> bytes:
        """The `moving` entry; empty if a reader cannot wait for the successor."""
        cannot_wait = self.is_turn or not self.successor or self.seconds > MAX_DELAY
        return b"" if cannot_wait else MOVING.pack(self.digest, self.successor, self.seconds)

    @property
    def turning(self) -> bytes:
        """The line of a `turning` entry; empty if the move ends or begins no life."""
        if not self.is_turn:
            return b""
        events = packed((event.event_id, event) for event in self.events).decode() if self.events else ""
        said = [self.digest.hex(), self.successor.hex(), self.seconds, self.dead_letter_queue, events, self.at_ms]
        return json.dumps(said).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """A `turning` entry as it is read. The events are still `packed`; `at_ms` is by the writer's clock."""

    successor: bytes
    seconds: int
    dead_letter_queue: str
    packed: str
    at_ms: int

    @classmethod
    def of(cls, line: bytes) -> tuple[bytes, Turn]:
        """The message's digest, and its turn. Raises `ValueError` or `TypeError` if redelivery did not write the line."""
        digest, successor, seconds, dead_letter_queue, events, at_ms = json.loads(line)
        read = bytes.fromhex(successor), min(int(seconds), MAX_DELAY), str(dead_letter_queue), str(events), int(at_ms)
        return bytes.fromhex(digest), cls(*read)

    @property
    def events(self) -> tuple[Event, ...]:
        try:
            return tuple(events_of(self.packed)) if self.packed else ()
        except EnvelopeError:
            return ()


def moved_of(
    message: bytes, successor: bytes, queue: str, seconds: int, *, target: str, events: Iterable[Event] = (), now_ms: int = 0
) -> Moved | None:
    """A move for the journal; None if both messages are equally far in their life: then their digests may be equal, too.

    `target` is the queue where the successor arrives, `events` are the move's events. Events of a death or a redrive without an id
    get ids that are made from the successor's digest: if two readers record such an event, it counts once.
    """
    before, after = opened(message), opened(successor)
    envelope = Envelope.of(after["headers"])
    if _steps(before, Envelope.of(before["headers"])) >= _steps(after, envelope):
        return None
    digest, known, recorded = _digest(before, queue), _digest(after, target), tuple(events)
    if not TURNS & {event.outcome for event in recorded}:
        recorded = ()
    said = tuple(
        replace(event, event_id=event.event_id or f"{now_ms}-turn{known.hex()}.{number}") for number, event in enumerate(recorded)
    )
    return Moved(digest, known, seconds, target if envelope.is_letter else "", said, now_ms)


def _steps(message: Raw, envelope: Envelope) -> tuple[bool, int, int, int]:
    """How far a message has come; each move makes this greater."""
    headers = message["headers"]
    return HEADER in headers, envelope.generation, envelope.delivery, count(headers.get(RELEASED))


def entry(kind: bytes, noted: Iterable[bytes]) -> amqp.Message:
    """The AMQP message that is one entry."""
    return amqp.Message(kind + b"".join(noted), content_type="application/octet-stream")
