"""The journal of moves on RabbitMQ: what has been moved on is known, though the worker died before it could acknowledge it.

A worker that moves a message writes words into a stream. A worker that is handed a message again waits for a moment and reads them:

- `moved`, written when the successor is confirmed, right behind the event: the message is only acknowledged;
- `unrecorded` takes `moved` back, where the log has refused the event: the message is delivered again;
- `moving`, written before the successor is published, names the successor, too. The reader waits for as long as the successor is
  delayed, and half a minute: where it `moved` or was `had` meanwhile, the message is only acknowledged, else delivered again;
- `turning`, written in place of `moving` where a life ends or begins by the move (a death, a redrive), has its event as well. For a
  dead letter the reader looks in its queue (`letter_look`). If the successor is there, or `moved`, or was `had`, the message is
  acknowledged with that event; else it is delivered again;
- `had`, written when the end of a message that has been moved before is recorded.

A message with `moved` has its event in the log. If only its successor is known, it may have none: its reader records one.
A word is a digest of one delivery of one message (`word`). A reader writes a marker of its own and reads until it comes back: then
it has read all that was written before. Nothing is lost without the journal: it only ever saves a copy. `docs/rabbitmq.md` says
what it cannot tell.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import TYPE_CHECKING, Any

import amqp

from redelivery.errors import EnvelopeError

from ...logs import log
from ...messages.envelope import HEADER, Envelope
from ...messages.events import Outcome
from ...messages.steps import opened
from ...ports import Successor
from .events import events_of, packed
from .letter_look import NOT_LOOKED, look_for
from .word import WORD, word_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...messages.events import Event
    from .letter_look import Looked

#: A word, its successor's, and for how many seconds that is delayed.
MOVING = Struct(f">{WORD}s{WORD}sI")
#: What an entry holds, by its first byte.
MARKER, HAS_MOVED, IS_UNRECORDED, IS_MOVING, HAS_HAD, IS_TURNING = b"?", b"d", b"u", b"g", b"h", b"l"
#: Seconds: how long the last frames of a dead worker may be on their way; how long a reader waits for its marker, and for more
#: questions before it closes its connection; how far back it reads.
ON_ITS_WAY, TIMEOUT, MAX_IDLE = 1.0, 10.0, 5.0
LOOK_BACK = timedelta(minutes=10)
#: Seconds: how long a successor may be delayed that is waited for, and how long it is waited for besides.
MAX_DELAY, MARGIN = 60, 30.0
#: Seconds that a dead letter is looked for, in a queue that nobody consumes.
LETTER_MARGIN = 5.0
#: Entries that the broker sends before the reader must say that it has read them.
MAX_UNREAD = 1000


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


@dataclass(frozen=True, slots=True)
class Question:
    """Whether this word's message was moved; when that was asked, and when it is to be looked up (monotonic seconds).

    `letters` are the queues where its dead letter may be looked for: the journal alone may not name them, for anybody may write it.
    """

    word: bytes
    letters: frozenset[str]
    then: Callable[[Successor, Event | None], None]
    asked_at: float
    due_at: float


class Journal:
    """Reads the journal in a thread of its own, which ends when nobody asks.

    `connect` opens a new connection (kombu's); `name` is the journal's queue.
    """

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        self._connect, self._name = connect, name
        self._asked: deque[Question] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, word: bytes, letters: frozenset[str], then: Callable[[Successor, Event | None], None]) -> None:
        """Tell `then` what the journal knows of this word, in a while, from another thread. It is not told after `close`."""
        with self._news:
            self._is_closed = False
            now = time.monotonic()
            self._asked.append(Question(word, letters, then, now, now + ON_ITS_WAY))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redelivery-journal", daemon=True)
                self._thread.start()
            self._news.notify()

    def close(self) -> None:
        """Answer nobody any more."""
        with self._news:
            self._is_closed = True
            self._asked.clear()
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1)  # it may be waiting for the broker, and has nothing to say any more

    # the thread

    def _run(self) -> None:
        reading: Reading | None = None
        while due := self._due():
            try:
                reading = reading or Reading(self._connect(), self._name)
                reading.catch_up()
                reading.look_for_letters(due)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the messages must go on
                log.warning("journal.unread", error=f"{type(exc).__name__}: {exc}", why="what was moved may be delivered again")
                _close(reading)
                reading = None
            self._answer(due, reading)
        _close(reading)

    def _answer(self, due: list[Question], reading: Reading | None) -> None:
        now, doubtful = time.monotonic(), []
        for each in due:
            known, event = (Successor.UNKNOWN, None) if reading is None else reading.successor_of(each.word)
            may_show = reading is not None and now < each.asked_at + reading.seconds_to_wait_for(each.word)
            if known is Successor.UNKNOWN and may_show:
                doubtful.append(replace(each, due_at=now + ON_ITS_WAY))
            else:
                self._tell(each.then, known, event)
        with self._news:
            if not self._is_closed:
                self._asked.extend(doubtful)

    def _tell(self, then: Callable[[Successor, Event | None], None], known: Successor, event: Event | None) -> None:
        if self._is_closed:
            return
        try:
            then(known, event)
        except Exception:  # noqa: BLE001 - its message stays unacknowledged, and comes again
            log.exception("journal.unheard")

    def _due(self) -> list[Question]:
        """What is to be answered now, once there is some; nothing when nobody has asked for a while, or it is closed."""
        with self._news:
            if not self._asked:
                self._news.wait_for(lambda: self._asked or self._is_closed, MAX_IDLE)
            while self._asked and (left := self._asked[0].due_at - time.monotonic()) > 0:
                self._news.wait(left)
            now, due = time.monotonic(), []
            while self._asked and self._asked[0].due_at <= now:
                due.append(self._asked.popleft())
            if not due:
                self._thread = None
            return due


class Reading:
    """One reading of the journal, on a connection of its own, from `LOOK_BACK` ago on. Raises what the connection raises."""

    def __init__(self, kombu: Any, name: str) -> None:
        self._moved: set[bytes] = set()
        self._had: set[bytes] = set()
        self._moving: dict[bytes, list[tuple[bytes, int]]] = {}
        self._turning: dict[bytes, list[Turn]] = {}
        self._looked: dict[str, Looked] = {}
        self._kombu, self._name, self._marker = kombu, name, b""
        self._channel = kombu.connection.channel()
        self._channel.basic_qos(0, MAX_UNREAD, a_global=False)
        since = datetime.now(UTC).replace(tzinfo=None) - LOOK_BACK
        self._channel.basic_consume(name, callback=self._note, arguments={"x-stream-offset": since})

    def successor_of(self, word: bytes) -> tuple[Successor, Event | None]:
        """What is known of this message's successor; and the event of a death or a redrive, where that may not be recorded."""
        if word in self._moved:
            return Successor.RECORDED, None
        if any(self._was_there(successor) for successor, _ in self._moving.get(word, ())):
            return Successor.SEEN, None
        for turn in self._turning.get(word, ()):
            if self._was_there(turn.successor) or turn.successor in self._looked_into(turn.dead_letter_queue).found:
                return Successor.SEEN, turn.event
        return Successor.UNKNOWN, None

    def look_for_letters(self, asked: Iterable[Question]) -> None:
        """Look for the dead letters of the messages of which nothing else is known, once in each queue."""
        wanted: dict[str, set[bytes]] = {}
        for each in asked:
            for turn in self._turning.get(each.word, ()) if self.successor_of(each.word)[0] is Successor.UNKNOWN else ():
                if turn.dead_letter_queue in each.letters:
                    wanted.setdefault(turn.dead_letter_queue, set()).add(turn.successor)
        self._looked = {queue: look_for(self._kombu, queue, letters) for queue, letters in wanted.items()}

    def seconds_to_wait_for(self, word: bytes) -> float:
        """For how many seconds a successor of this message may yet show."""
        moving = [seconds + MARGIN for _, seconds in self._moving.get(word, ())]
        return max(moving + [self._patience_of(turn) for turn in self._turning.get(word, ())], default=0.0)

    def _patience_of(self, turn: Turn) -> float:
        is_looked_for = turn.dead_letter_queue and not self._looked_into(turn.dead_letter_queue).is_consumed
        return LETTER_MARGIN if is_looked_for else turn.seconds + MARGIN

    def _was_there(self, word: bytes) -> bool:
        return word in self._had or word in self._moved

    def _looked_into(self, queue: str) -> Looked:
        return self._looked.get(queue, NOT_LOOKED)

    def catch_up(self) -> None:
        """Read all that was written before now."""
        self._marker = MARKER + uuid.uuid4().bytes
        self._channel.basic_publish(entry(b"", [self._marker]), routing_key=self._name)
        until = time.monotonic() + TIMEOUT
        while self._marker:
            self._kombu.connection.drain_events(timeout=max(until - time.monotonic(), 0.001))

    def _note(self, message: Any) -> None:
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        if body == self._marker:
            self._marker = b""
        self._read(body[:1], body[1:])
        if message.delivery_tag % (MAX_UNREAD // 2) == 0:
            self._channel.basic_ack(message.delivery_tag, multiple=True)

    def _read(self, kind: bytes, words: bytes) -> None:
        """What cannot be read was not written by us."""
        if kind == IS_MOVING and len(words) % MOVING.size == 0:
            for word, successor, seconds in MOVING.iter_unpack(words):
                self._moving.setdefault(word, []).append((successor, min(seconds, MAX_DELAY)))
            return
        if kind == IS_TURNING:
            self._read_turns(words)
            return
        read = {words[at : at + WORD] for at in range(0, len(words) - WORD + 1, WORD)}
        if kind == HAS_MOVED:
            self._moved |= read
        elif kind == IS_UNRECORDED:
            self._moved -= read
        elif kind == HAS_HAD:
            self._had |= read

    def _read_turns(self, lines: bytes) -> None:
        for line in lines.splitlines():
            with suppress(ValueError, TypeError, RecursionError):
                word, turn = Turn.of(line)
                self._turning.setdefault(word, []).append(turn)

    def close(self) -> None:
        """Close its connection."""
        self._kombu.collect(socket_timeout=1.0)


def _close(reading: Reading | None) -> None:
    if reading is not None:
        try:
            reading.close()
        except Exception as exc:  # noqa: BLE001 - it is given up
            log.debug("journal.not_closed", error=str(exc))
