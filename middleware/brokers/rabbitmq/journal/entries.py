"""What is written into the journal of moves: the words of messages, and what a move says of them.

A word is a digest of one delivery of one message, from one queue. It is made of the message's id, its body and our header. What the
broker writes when it hands a message over again is not in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Any

import amqp

from redelivery.errors import EnvelopeError

from ....messages.envelope import HEADER, Envelope
from ....messages.events import Outcome
from ....messages.steps import opened
from ..events import events_of, packed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ....messages.events import Event

#: Bytes of a word.
WORD = 16
#: A word, its successor's, and for how many seconds that is delayed.
MOVING = Struct(f">{WORD}s{WORD}sI")
#: What an entry holds, by its first byte.
MARKER, HAS_MOVED, IS_UNRECORDED, IS_MOVING, HAS_HAD, IS_TURNING = b"?", b"d", b"u", b"g", b"h", b"l"
#: Seconds that a successor may be delayed that is waited for.
MAX_DELAY = 60


def word_of(message: bytes, queue: str) -> bytes:
    """The word of a message (an envelope's bytes) as it is delivered from this queue."""
    raw = opened(message)
    headers = raw["headers"]
    known = [queue, headers.get("id"), headers.get("replaced_task_nesting"), headers.get(HEADER), raw.get("body")]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).digest()[:WORD]


@dataclass(frozen=True, slots=True)
class Moved:
    """The words of a move: of the message and of its successor, and for how many seconds the successor waits.

    `dead_letter_queue` is where a dead letter goes; empty for what lives. `event` is what its reader has to record, with its id;
    None where there is nothing to record, or where the reader records that the message was handed over again.
    """

    word: bytes
    successor: bytes
    seconds: int = 0
    dead_letter_queue: str = ""
    event: Event | None = None

    @property
    def is_turn(self) -> bool:
        """Whether a life ends or begins by the move."""
        return bool(self.dead_letter_queue) or self.event is not None

    @property
    def moving(self) -> bytes:
        """What is written before a message that goes on is published; empty where nobody could wait for the successor."""
        return b"" if self.is_turn or self.seconds > MAX_DELAY else MOVING.pack(self.word, self.successor, self.seconds)

    @property
    def turning(self) -> bytes:
        """What is written before a life ends or begins: a line; empty for what goes on."""
        if not self.is_turn:
            return b""
        events = "" if self.event is None else packed([(self.event.event_id, self.event)]).decode()
        return json.dumps([self.word.hex(), self.successor.hex(), self.seconds, self.dead_letter_queue, events]).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """A `turning` as it is read: the successor's word, its delay, and its queue where it is a dead letter; the event, packed."""

    successor: bytes
    seconds: int
    dead_letter_queue: str
    events: str

    @classmethod
    def of(cls, line: bytes) -> tuple[bytes, Turn]:
        """The word of the message, and its turn. Raises `ValueError` or `TypeError` where it was not written by us."""
        word, successor, seconds, dead_letter_queue, events = json.loads(line)
        return bytes.fromhex(word), cls(bytes.fromhex(successor), min(int(seconds), MAX_DELAY), str(dead_letter_queue), str(events))

    @property
    def event(self) -> Event | None:
        """The event of the turn; None where there is none to record."""
        try:
            return events_of(self.events)[0] if self.events else None
        except (EnvelopeError, IndexError):
            return None


def moved_of(
    message: bytes, successor: bytes, queue: str, seconds: int, *, target: str, event: Event | None = None, now_ms: int = 0
) -> Moved | None:
    """The words of a move; None where the successor is no step on, and might be the same again.

    `target` is the queue where the successor arrives, `event` what is recorded of the move. The event of a death or a redrive gets
    an id that is made of the successor's word: if two readers record it, it counts once.
    """
    before, after = opened(message)["headers"], opened(successor)["headers"]
    if _steps(before) >= _steps(after):
        return None
    word, known = word_of(message, queue), word_of(successor, target)
    is_letter = Envelope.of(after).is_letter
    is_turn = event is not None and event.outcome in {Outcome.DEAD_LETTERED, Outcome.REDRIVEN}
    said = replace(event, event_id=f"{now_ms}-turn{known.hex()}.0") if event is not None and is_turn else None
    return Moved(word, known, seconds, target if is_letter else "", said)


def _steps(headers: dict[str, Any]) -> tuple[bool, int, int]:
    """How far a message has come: it never comes back to where it was."""
    envelope = Envelope.of(headers)
    return HEADER in headers, envelope.generation, envelope.delivery


def entry(kind: bytes, words: Iterable[bytes]) -> amqp.Message:
    """The message that writes these words."""
    return amqp.Message(kind + b"".join(words), content_type="application/octet-stream")
