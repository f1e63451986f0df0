"""Reads the journal of moves, in its own thread, to find out whether a message was moved."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ....logs import log
from ....ports import Successor
from ..peek import depth_of
from .entries import (
    DIGEST,
    HAS_ENDED,
    HAS_MOVED,
    HAS_STAYED,
    IS_MOVING,
    IS_TURNING,
    IS_UNRECORDED,
    MARKER,
    MAX_DELAY,
    MOVING,
    Turn,
    entry,
)
from .letter_look import NOT_LOOKED, look_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ....messages.events import Event
    from .letter_look import Looked

#: Seconds in which a dead worker's last frames may still arrive.
ON_ITS_WAY = 1.0
#: Seconds that a reader waits for its marker, unless the broker has reported that it is blocked; and for more questions, before it
#: closes its connection.
TIMEOUT, MAX_IDLE = 10.0, 5.0
#: The most seconds of one wait: a reader that waits for the end of an alarm may be closed meanwhile.
MAX_STEP = 1.0
#: How far back a reader reads.
LOOK_BACK = timedelta(minutes=10)
#: Seconds to wait for a successor after its own delay.
MARGIN = 30.0
#: Seconds to look for a dead letter in a queue without a consumer.
LETTER_MARGIN = 5.0
#: The most entries that the broker sends without an acknowledgement.
MAX_UNREAD = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """The question whether the message with this digest was moved; times are monotonic seconds.

    `queue` is the message's queue. `letters` are the queues in which to look for its dead letter: queue names from the journal are
    not trusted, because any client may write the journal.
    """

    digest: bytes
    queue: str
    letters: frozenset[str]
    then: Callable[[Successor, Sequence[Event]], None]
    asked_at: float
    due_at: float


class Journal:
    """Answers questions in its own thread, which ends when there are none. `connect` opens a new kombu connection."""

    def __init__(self, connect: Callable[[], Any], name: str) -> None:
        self._connect, self._name = connect, name
        self._asked: deque[Question] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, digest: bytes, queue: str, letters: frozenset[str], then: Callable[[Successor, Sequence[Event]], None]) -> None:
        """Call `then` later, from another thread, with what the journal shows; not after `close`. See `Question`."""
        with self._news:
            self._is_closed = False
            now = time.monotonic()
            self._asked.append(Question(digest, queue, letters, then, now, now + ON_ITS_WAY))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redelivery-journal", daemon=True)
                self._thread.start()
            self._news.notify()

    def close(self) -> None:
        with self._news:
            self._is_closed = True
            self._asked.clear()
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1)  # no longer: it may be waiting for the broker

    def _run(self) -> None:
        reading: Reading | None = None
        while due := self._due():
            try:
                reading = reading or Reading(self._connect(), self._name, waits=lambda: not self._is_closed)
                reading.catch_up()
                reading.look_for_letters((each.digest, each.letters) for each in due)
                reading.look_for_others((each.digest, each.queue) for each in due)
            except Exception as exc:  # noqa: BLE001 - the messages must go on, after any error
                if not self._is_closed:
                    log.warning("journal.unread", error=f"{type(exc).__name__}: {exc}", why="moved messages may be delivered again")
                _close(reading)
                reading = None
            self._answer(due, reading)
        _close(reading)

    def _answer(self, due: list[Question], reading: Reading | None) -> None:
        now, doubtful = time.monotonic(), []
        for each in due:
            known, events = (Successor.UNKNOWN, ()) if reading is None else reading.successor_of(each.digest)
            if known is Successor.UNKNOWN and reading is not None and reading.may_show(each, now - each.asked_at):
                doubtful.append(replace(each, due_at=now + ON_ITS_WAY))
            else:
                self._call_back(each.then, known, events)
        with self._news:
            if not self._is_closed:
                self._asked.extend(doubtful)

    def _call_back(self, then: Callable[[Successor, Sequence[Event]], None], known: Successor, events: Sequence[Event]) -> None:
        if self._is_closed:
            return
        try:
            then(known, events)
        except Exception:  # noqa: BLE001 - the message stays unacknowledged, and comes again
            log.exception("journal.unheard")

    def _due(self) -> list[Question]:
        """Wait for questions that are due; none if no question came for a while, or the journal is closed."""
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
    """Reads the journal on its own connection, from `look_back` ago on. Raises what the connection raises.

    While the broker has an alarm, it accepts no marker, and a reader knows nothing. It waits for the end of the alarm as long as
    `waits` says so.
    """

    def __init__(self, kombu: Any, name: str, look_back: timedelta = LOOK_BACK, waits: Callable[[], bool] = lambda: False) -> None:
        self._moved: set[bytes] = set()
        self._ended: set[bytes] = set()
        self._moving: dict[bytes, list[tuple[bytes, int]]] = {}
        self._turning: dict[bytes, list[Turn]] = {}
        self._looked: dict[str, Looked] = {}
        self._with_others: set[str] = set()
        self._kombu, self._name, self._marker = kombu, name, b""
        self._waits, self._is_blocked = waits, False
        kombu.connection.on_blocked, kombu.connection.on_unblocked = self._blocked, self._unblocked
        self._channel = kombu.connection.channel()
        self._channel.basic_qos(0, MAX_UNREAD, a_global=False)
        since = datetime.now(UTC).replace(tzinfo=None) - look_back
        self._channel.basic_consume(name, callback=self._note, arguments={"x-stream-offset": since})

    def successor_of(self, digest: bytes) -> tuple[Successor, tuple[Event, ...]]:
        """What is known about this message's successor, and the events of a death or redrive that may not be recorded yet."""
        if self._has_moved(digest):
            return Successor.RECORDED, ()
        if any(self._has_moved(successor) for successor, _ in self._moving.get(digest, ())):
            return Successor.SEEN, ()
        for turn in self._turning.get(digest, ()):
            if self._has_moved(turn.successor) or turn.successor in self._looked_into(turn.dead_letter_queue).found:
                return Successor.SEEN, turn.events
        return Successor.UNKNOWN, ()

    def is_in_doubt(self, digest: bytes, since_ms: int, looked_since_ms: int) -> bool:
        """Whether a move of this message was begun after `since_ms`, and it is unknown whether the message moved.

        If the dead letter was looked for and not found, `looked_since_ms` replaces `since_ms`.
        """
        if self.successor_of(digest)[0] is not Successor.UNKNOWN:
            return False
        turns = self._turning.get(digest, ())
        return any(
            turn.at_ms >= (looked_since_ms if self._looked_into(turn.dead_letter_queue).is_done else since_ms) for turn in turns
        )

    def look_for_letters(self, asked: Iterable[tuple[bytes, frozenset[str]]]) -> None:
        """Look for dead letters with unknown successors. `asked` has each message's digest, and the queues to look in."""
        wanted: dict[str, set[bytes]] = {}
        for digest, letters in asked:
            for turn in self._turning.get(digest, ()) if self.successor_of(digest)[0] is Successor.UNKNOWN else ():
                if turn.dead_letter_queue in letters:
                    wanted.setdefault(turn.dead_letter_queue, set()).add(turn.successor)
        self._looked = {queue: look_for(self._kombu, queue, letters) for queue, letters in wanted.items()}

    def look_for_others(self, asked: Iterable[tuple[bytes, str]]) -> None:
        """Find out which queues of messages with unknown successors are not empty. `asked` has each message's digest and queue."""
        in_doubt = {
            queue for digest, queue in asked if digest in self._moving and self.successor_of(digest)[0] is Successor.UNKNOWN
        }
        self._with_others = {queue for queue in in_doubt if self._has_waiting(queue)}

    def _has_waiting(self, queue: str) -> bool:
        try:
            return (depth_of(self._kombu, queue) or 0) > 0
        except self._kombu.channel_errors:  # this user may not look at it
            return False

    def may_show(self, asked: Question, waited: float) -> bool:
        """Whether the reader should wait longer than `waited` seconds for this message's successor.

        The successor may still wait in its queue while other messages wait there. A queue may never be empty, so the wait ends
        after `LOOK_BACK` at the latest.
        """
        moving = self._moving.get(asked.digest, ())
        turning = [self._seconds_to_wait(turn) for turn in self._turning.get(asked.digest, ())]
        if waited < max([seconds + MARGIN for _, seconds in moving] + turning, default=0.0):
            return True
        return bool(moving) and waited < LOOK_BACK.total_seconds() and asked.queue in self._with_others

    def _seconds_to_wait(self, turn: Turn) -> float:
        is_looked_for = turn.dead_letter_queue and not self._looked_into(turn.dead_letter_queue).is_consumed
        return LETTER_MARGIN if is_looked_for else turn.seconds + MARGIN

    def _has_moved(self, digest: bytes) -> bool:
        return digest in self._ended or digest in self._moved

    def _looked_into(self, queue: str) -> Looked:
        return self._looked.get(queue, NOT_LOOKED)

    def catch_up(self) -> None:
        """Read all entries that were written before now."""
        self._marker = MARKER + uuid.uuid4().bytes
        self._channel.basic_publish(entry(b"", [self._marker]), routing_key=self._name)
        until = time.monotonic() + TIMEOUT
        while self._marker:
            try:
                self._kombu.connection.drain_events(timeout=min(max(until - time.monotonic(), 0.001), MAX_STEP))
            except TimeoutError:
                if self._is_blocked and self._waits():
                    until = time.monotonic() + TIMEOUT
                elif time.monotonic() >= until:
                    raise

    def _blocked(self, reason: str) -> None:
        self._is_blocked = True
        if self._waits():
            log.warning("broker.blocked", why=reason)

    def _unblocked(self) -> None:
        self._is_blocked = False
        if self._waits():
            log.info("broker.unblocked")

    def _note(self, message: Any) -> None:
        body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
        if body == self._marker:
            self._marker = b""
        self._read(body[:1], body[1:])
        if message.delivery_tag % (MAX_UNREAD // 2) == 0:
            self._channel.basic_ack(message.delivery_tag, multiple=True)

    def _read(self, kind: bytes, written: bytes) -> None:
        """Note an entry. An unreadable entry was not written by redelivery, and is ignored."""
        if kind == IS_MOVING and len(written) % MOVING.size == 0:
            for digest, successor, seconds in MOVING.iter_unpack(written):
                self._moving.setdefault(digest, []).append((successor, min(seconds, MAX_DELAY)))
            return
        if kind == IS_TURNING:
            self._read_turns(written)
            return
        read = {written[at : at + DIGEST] for at in range(0, len(written) - DIGEST + 1, DIGEST)}
        if kind == HAS_MOVED:
            self._moved |= read
        elif kind == IS_UNRECORDED:
            self._moved -= read
        elif kind == HAS_ENDED:
            self._ended |= read
        elif kind == HAS_STAYED:
            for digest in read:
                self._moving.pop(digest, None)
                self._turning.pop(digest, None)

    def _read_turns(self, lines: bytes) -> None:
        for line in lines.splitlines():
            with suppress(ValueError, TypeError, RecursionError):
                digest, turn = Turn.of(line)
                self._turning.setdefault(digest, []).append(turn)

    def close(self) -> None:
        self._kombu.collect(socket_timeout=1.0)


def _close(reading: Reading | None) -> None:
    if reading is not None:
        try:
            reading.close()
        except Exception as exc:  # noqa: BLE001 - it is given up
            log.debug("journal.not_closed", error=str(exc))
