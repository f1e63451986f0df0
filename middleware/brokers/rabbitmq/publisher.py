"""The publisher: carries moves out on RabbitMQ, many at a time, in a native thread with its own connection.

1. The message is published to its target, and the broker confirms it. If the broker cannot route it, the queue is declared, and the
   message is published again; if that fails, too, the move is tried again every few seconds.
2. The outcome event is published, and then the entry in the journal (`journal`), whose confirmation is not awaited.
3. The event is confirmed. If the outcome log refuses it, the entry is taken back; until the log accepts events again, later entries
   are written only after the confirmation.
4. The caller gets the answer, and acknowledges the delivery.

If the connection breaks, unconfirmed messages are published again, and events keep their ids. If the broker has taken a delivery
back meanwhile (its channel is gone), its move is refused before anything is published. An operator's move is not published again
(`UNSURE`): the old message stays. The journal tells the next command whether a dead letter arrived.

Limits: if a worker dies between two steps, the message is delivered again. It runs twice if its successor was published without an
entry. If the worker dies in the milliseconds between the first entry and the first refusal, a move has no event.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from amqp.exceptions import FrameSyntaxError

from redelivery.errors import BrokerError, BrokerUnavailable

from ...logs import log
from ...messages.events import Numbering
from ...ports import Answer
from .confirms import Confirms
from .events import packed
from .journal.entries import HAS_ENDED, HAS_MOVED, HAS_STAYED, IS_MOVING, IS_TURNING, IS_UNRECORDED, entry
from .messages import PERSISTENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ...messages.events import Event
    from .journal.entries import Moved
    from .names import AmqpNames

#: The most moves that are carried out together, and the most bytes of their messages.
MAX_MOVES, MAX_BYTES = 256, 8 * 1024 * 1024
#: Seconds between two attempts to reach the broker.
FIRST_WAIT, MAX_WAIT = 0.05, 2.0
#: Seconds before a failed move is tried again.
QUARANTINE = 3.0
#: Seconds to wait for a confirmation, unless the broker has reported that it is blocked.
TIMEOUT = 30.0
#: Seconds that moves wait for more moves; the number of moves that do not wait.
LINGER, ENOUGH = 0.02, 64
#: How often a batch is tried before its moves are tried one by one; once for errors that are not temporary.
MAX_TOGETHER = 3
#: Larger messages (bytes) are published alone, because the broker may refuse them for their size.
LARGE = 64 * 1024
#: Temporary errors, which no move has caused.
NOT_NOW = (OSError, BrokerUnavailable)
#: Errors by which the broker forbids a move, unless they are temporary.
FORBIDDEN = (amqp.AccessRefused, BrokerError)
#: Errors of a broken connection: it is not known whether the broker has received what was sent on it.
GONE = (OSError, amqp.RecoverableConnectionError)
#: py-amqp's errors for a message or name that cannot be written in AMQP. They come before any part is sent.
UNWRITABLE = (FrameSyntaxError, struct.error, UnicodeError, OverflowError, RecursionError)

Address = tuple[str, str]

#: Notified when a move has ended.
ENDED = threading.Condition()


@dataclass(slots=True, eq=False)
class Move:
    """One move: the message and its target, the event to record, and the function that gets the answer.

    `prepare` declares what the target needs. It returns False if the target is missing and may not be created: then nothing has
    changed (`MISSING`). `is_current` tells whether this worker may still end the delivery. A message that cannot be routed is tried
    again and again. Without `may_wait` the answer is `MISSING` instead, and a forbidden move ends (`refusal`). `moved` and
    `ended_message` are written into the journal. `further` is recorded together with `event`.
    """

    event: Event | None
    then: Callable[[Answer], None]
    message: amqp.Message | None = None
    target: Address = ("", "")
    prepare: Callable[[Any, bool], bool] = lambda _, __: True
    is_current: Callable[[], bool] = lambda: True
    may_wait: bool = True
    moved: Moved | None = None
    ended_message: bytes = b""
    event_id: str = ""
    further: tuple[Event, ...] = ()
    #: Whether the message has arrived at its target.
    is_there: bool = False
    #: The error of an attempt with this move alone. After it, the move is always carried out alone.
    failure: Exception | None = None
    answer: Answer | None = None
    #: Why the broker forbids the move.
    refusal: BrokerError | None = None

    def wait(self, seconds: float) -> bool:
        """Wait until the move has ended, at most this long; return whether it has. Raises `BrokerError` if it is forbidden."""
        with ENDED:
            has_ended = ENDED.wait_for(lambda: self.answer is not None, seconds)
        if self.refusal is not None:
            raise self.refusal
        return has_ended

    def is_forbidden_by(self, exc: Exception) -> bool:
        """Whether the move ends with this error: a caller waits for the move, and its message has not arrived."""
        is_out = self.is_there and self.message is not None
        return not self.may_wait and not is_out and isinstance(exc, FORBIDDEN) and not isinstance(exc, NOT_NOW)

    def numbered_events(self, numbers: Numbering) -> list[tuple[str, Event]]:
        """The events with their ids, which are the same at each call."""
        if self.event is None:
            return []
        self.event_id = self.event_id or numbers.next_id()
        self.further = tuple(replace(each, event_id=each.event_id or numbers.next_id()) for each in self.further)
        return [(self.event_id, self.event), *((each.event_id, each) for each in self.further)]

    def end(self, answer: Answer) -> None:
        """End the move: give the answer to `then` and to waiting threads."""
        self.answer = answer
        try:
            self.then(answer)
        except Exception:  # noqa: BLE001 - the move is carried out, and the thread must go on
            log.exception("transition.unheard", tag="")
        with ENDED:
            ENDED.notify_all()


def _groups(moves: list[Any]) -> Iterator[list[Any]]:
    """Groups of moves whose messages are published and confirmed together.

    If the broker refuses a publication with an error, it sends no more confirmations, and its whole group is published again. It
    may refuse a missing or forbidden exchange, or a large message.
    """
    small = [move for move in moves if len(move.message.body) <= LARGE]
    yield [move for move in small if not move.target[0]]
    yield [move for move in small if move.target[0]]
    yield from ([move] for move in moves if len(move.message.body) > LARGE)


class Publisher:
    """The thread and its connection. `declare` declares the outcome log; `ended` is called after each attempt."""

    def __init__(
        self,
        connect: Callable[[], Any],
        names: AmqpNames,
        declare: Callable[[Any], object],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect, self._names, self._declare, self._ended = connect, names, declare, ended
        self._numbers = Numbering()
        self._queue: deque[Move] = deque()
        self._quarantined: list[tuple[float, Move]] = []
        self._under_way = 0
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._kombu: Any = None
        self._channel: Any = None
        self._confirms = Confirms()
        self._returned: set[Address] = set()
        self._is_blocked = False
        self._stopped = False
        self._was_broken = False
        #: Whether the outcome log refused the last events.
        self._was_refused = False
        #: This many moves do not wait for more.
        self.enough = 1

    def submit(self, move: Move) -> Move:
        """Add the move to the waiting moves; it never fails."""
        with self._news:
            self._begin()
            self._queue.append(move)
            if len(self._queue) in {1, self.enough}:
                self._news.notify()
        return move

    def drain(self, seconds: float) -> bool:
        """Wait until all moves are carried out or quarantined, at most this long; False if a move still waits."""
        deadline = time.monotonic() + seconds
        while (self._queue or self._under_way) and time.monotonic() < deadline:
            time.sleep(0.005)  # only when a worker stops
        return not self._queue and not self._under_way

    def waiting(self) -> int:
        """How many moves are not carried out yet."""
        return len(self._queue) + self._under_way + len(self._quarantined)

    def close(self) -> None:
        """End the thread after the moves under way, and close the connection."""
        with self._news:
            self._stopped = True
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _begin(self) -> None:
        """Start the thread, once in each process: a forked child does not inherit it."""
        if self._pid != os.getpid():
            self._pid, self._thread, self._under_way = os.getpid(), None, 0
            self._kombu = self._channel = None
        if self._thread is None or not self._thread.is_alive():
            self._stopped = False
            self._thread = threading.Thread(target=self._run, name="redelivery-publisher", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                break
            self._carry_out(batch)
            self._under_way = 0
        self._disconnect()

    def _carry_out(self, batch: list[Move]) -> None:
        """Try until each move has ended or is quarantined. A move that itself causes the failure does not stop the others."""
        wait, failures = FIRST_WAIT, 0
        while batch:
            tried = batch if failures < MAX_TOGETHER else batch[:1]
            try:
                self._attempt(tried)
            except Exception as exc:  # noqa: BLE001 - nothing was acknowledged, and the thread must go on
                failures += 1 if isinstance(exc, NOT_NOW) else MAX_TOGETHER
                error = f"{type(exc).__name__}: {exc}"
                self._disconnect()
                if self._stopped and failures > 1:
                    return
                if failures > MAX_TOGETHER and tried[0].is_forbidden_by(exc):
                    self._forbid(tried[0], exc)
                elif failures > MAX_TOGETHER and not isinstance(exc, NOT_NOW):
                    tried[0].failure = exc
                    self._quarantine(tried[0], error)
                else:
                    log.warning("publisher.waiting", error=error, waiting=self.waiting())
                    time.sleep(wait)
                    wait = min(wait * 2, MAX_WAIT)
            batch = [move for move in batch if move.answer is None and not self._is_quarantined(move)]
        self._was_broken = False

    def _forbid(self, move: Move, why: Exception) -> None:
        """End a forbidden move that a caller waits for: the message stays where it is."""
        with suppress(Exception):  # if no entry can be written, none was
            self._write_digests(HAS_STAYED, [move])
        move.refusal = why if isinstance(why, BrokerError) else BrokerError(str(why))
        move.end(Answer.MISSING)

    def _is_quarantined(self, move: Move) -> bool:
        return any(move is each for _, each in self._quarantined)

    def _next(self) -> list[Move] | None:
        """Wait for moves, and return the next batch; None if the publisher is closed."""
        with self._news:
            while True:
                now = time.monotonic()
                due = [move for at, move in self._quarantined if at <= now]
                if due:
                    self._quarantined = [(at, move) for at, move in self._quarantined if at > now]
                    self._queue.extendleft(reversed(due))
                if self._queue:
                    self._wait_for_more()
                    return self._take_batch()
                if self._stopped:
                    return None
                self._news.wait(min((at for at, _ in self._quarantined), default=now + 3600) - now)

    def _wait_for_more(self) -> None:
        """Wait a moment for more moves, because each run of this thread takes the interpreter from the worker's main thread."""
        until = time.monotonic() + LINGER
        while len(self._queue) < self.enough and not self._stopped and (left := until - time.monotonic()) > 0:
            self._news.wait(left)

    def _take_batch(self) -> list[Move]:
        batch: list[Move] = []
        size = 0
        while self._queue and len(batch) < MAX_MOVES and size < MAX_BYTES:
            if batch and (batch[-1].failure or self._queue[0].failure):
                break
            move = self._queue.popleft()
            size += 0 if move.message is None else len(move.message.body)
            batch.append(move)
        self._under_way = len(batch)
        return batch

    def _attempt(self, batch: list[Move]) -> None:
        """Make one attempt. Raises what the connection raises."""
        for move in batch:
            if not move.is_there and not move.is_current():
                move.end(Answer.REFUSED)
        standing = [move for move in batch if move.answer is None]
        self._send(standing, is_again=self._was_broken)
        standing = [move for move in standing if not self._is_quarantined(move)]
        self._send([move for move in standing if move.answer is None], is_again=True)
        there = [move for move in standing if move.is_there]
        self._write_digests(HAS_STAYED, [move for move in standing if not move.is_there and not move.may_wait])
        for move in standing:
            if move.answer is None and not move.is_there and not move.may_wait:
                move.end(Answer.MISSING)
            elif move.answer is None and not move.is_there:
                log.error("transition.unroutable", exchange=move.target[0], routing_key=move.target[1], again_in=QUARANTINE)
                self._quarantined.append((time.monotonic() + QUARANTINE, move))
        self._record(there)
        for move in there:
            move.end(Answer.DONE)
        self._ended()

    def _send(self, moves: Iterable[Move], *, is_again: bool) -> None:
        """Publish the messages that have not arrived yet, and wait for their confirmations."""
        self._confirms.nacked, self._returned = set(), set()
        listed = [move for move in moves if not move.is_there]
        known = [move.moved for move in listed if move.moved is not None and move.may_wait]
        self._write_entry(IS_MOVING, [moved.moving for moved in known if moved.moving])
        self._write_entry(IS_TURNING, [moved.turning for moved in known if moved.turning])
        for move in listed:
            if move.message is None:
                move.is_there = True
            elif not move.prepare(self._connection, is_again):
                move.end(Answer.MISSING)
        for group in _groups([move for move in listed if not move.is_there and move.answer is None]):
            self._send_group(group)
        if self._confirms.nacked:
            # After a full quorum queue has refused, the channel goes on refusing even if the limit is removed.
            self._channel.close()
            self._open_channel(self._connection)

    def _send_group(self, group: Iterable[Move]) -> None:
        """Publish these messages together. If the connection breaks, the confirmed ones still count as published."""
        sent: dict[int, Move] = {}
        try:
            for move in group:
                if (number := self._number_of(move)) is not None:
                    sent[number] = move
            self._confirmed()
        except GONE:
            for number in sent.keys() & self._confirms.open:
                if not sent[number].may_wait:
                    sent[number].end(Answer.UNSURE)
            raise
        finally:
            missing = self._confirms.nacked | self._confirms.open
            for number, move in sent.items():
                move.is_there = number not in missing and move.target not in self._returned

    def _number_of(self, move: Move) -> int | None:
        """Publish the move's message; return the number of the publication, or None if the message cannot be written."""
        if not move.may_wait and move.moved is not None:
            # A separate entry, before the message: a reader that finds the old message leaves it until more is known.
            self._write_entry(IS_TURNING, [move.moved.turning])
        try:
            return self._publish(move.message, move.target)
        except UNWRITABLE as exc:  # no part of it was sent
            if move.may_wait:
                self._quarantine(move, f"{type(exc).__name__}: {exc}")
            else:
                move.end(Answer.MISSING)
            return None

    def _quarantine(self, move: Move, error: str) -> None:
        """Try the move again later, so that the other moves go on."""
        log.error("transition.failed", tag="", error=error, again_in=QUARANTINE, waiting=self.waiting())
        self._quarantined.append((time.monotonic() + QUARANTINE, move))

    def _record(self, moves: list[Move]) -> None:
        """Record the events of the moves whose messages have arrived.

        A reader that finds an entry acknowledges the message, so the event must be in the log: once the log has refused events,
        entries are written only after it has accepted some.
        """
        events = [each for move in moves for each in move.numbered_events(self._numbers)]
        if not events:
            self._write_digests(HAS_MOVED, moves)
            return
        for is_again in (False, True):
            message = amqp.Message(packed(events), content_type="application/json", delivery_mode=PERSISTENT)
            target = (self._names.outcomes_exchange, self._names.outcomes)
            self._confirms.nacked, self._returned = set(), set()
            number, is_sure = self._publish(message, target), not self._was_refused
            if is_sure:
                self._write_digests(HAS_MOVED, moves)
            self._confirmed()
            if number not in self._confirms.nacked and target not in self._returned:
                if not is_sure:
                    self._write_digests(HAS_MOVED, moves)
                self._was_refused = False
                self._write_entry(HAS_ENDED, [move.ended_message for move in moves if move.ended_message])
                return
            self._was_refused = True
            if is_sure:
                self._write_digests(IS_UNRECORDED, moves)
            if not is_again:
                self._declare(self._connection)
        msg = f"the outcome log {self._names.outcomes} takes no events: does a policy of the broker limit its length?"
        raise BrokerError(msg)

    def _write_digests(self, kind: bytes, moves: list[Move]) -> None:
        self._write_entry(kind, [move.moved.digest for move in moves if move.moved is not None])

    def _write_entry(self, kind: bytes, noted: list[bytes]) -> None:
        """Write these into the journal as one entry, without waiting: the journal may refuse all entries."""
        if noted:
            number = self._publish(entry(kind, noted), ("", self._names.journal))
            self._confirms.open.discard(number)

    def _publish(self, message: amqp.Message | None, target: Address) -> int:
        self._connection  # noqa: B018 - opens the connection if it is not open
        self._channel.send_method(spec.Basic.Publish, "Bssbb", (0, *target, True, False), message)
        return self._confirms.published()

    def _confirmed(self) -> None:
        """Wait until the broker has confirmed or refused all publications."""
        deadline = time.monotonic() + TIMEOUT
        while self._confirms.open:
            try:
                self._kombu.connection.drain_events(timeout=1.0)
            except TimeoutError:
                if self._is_blocked:
                    deadline = time.monotonic() + TIMEOUT
                elif time.monotonic() > deadline:
                    msg = f"the broker has confirmed nothing for {TIMEOUT:g} s"
                    raise ConnectionError(msg) from None

    @property
    def _connection(self) -> Any:
        """The py-amqp connection; its channel confirms publications."""
        if self._kombu is None:
            kombu = self._connect()
            connection = kombu.connection
            connection.on_blocked, connection.on_unblocked = self._blocked, self._unblocked
            self._open_channel(connection)
            self._kombu, self._is_blocked = kombu, False
            self._declare(connection)
        return self._kombu.connection

    def _open_channel(self, connection: Any) -> None:
        self._channel = connection.channel()
        self._confirms = Confirms(self._channel)
        self._channel.events["basic_return"].add(self._on_return)

    def _disconnect(self) -> None:
        self._was_broken = True  # queues and exchanges may be gone: they are declared again
        kombu, self._kombu, self._channel = self._kombu, None, None
        self._confirms, self._returned = Confirms(), set()
        if kombu is not None:
            try:
                kombu.collect(socket_timeout=1.0)
            except Exception as exc:  # noqa: BLE001 - it is given up
                log.debug("publisher.not_closed", error=str(exc))

    def _on_return(self, _: Exception, exchange: str, routing_key: str, __: Any) -> None:
        self._returned.add((exchange, routing_key))

    def _blocked(self, reason: str) -> None:
        self._is_blocked = True
        log.warning("broker.blocked", why=reason)

    def _unblocked(self) -> None:
        self._is_blocked = False
        log.info("broker.unblocked")
