"""The publisher: carries moves out on RabbitMQ, many at a time, on a connection of its own.

A move is, in this order: the message is published where it goes, and the broker confirms that it is there; its outcome event is
published, and behind it its entry in the journal (`journal`), for which nobody waits; the event is confirmed, or the entry is
taken back, and written after the confirmation from then on, until the log takes events again; then the one that asked for the
move is told, and acknowledges the delivery. Whatever dies between two steps leaves the delivery unacknowledged: it comes again,
and may run twice where its entry is not written, but is never lost.

A native thread does it, so that the worker's event loop waits for no confirmation; what is asked for meanwhile goes out together.
A connection that is lost is opened again, and what was not confirmed is published again, under the same event id. A message that
the broker cannot route (its queue was deleted) is declared a queue for and published again; where that fails, too, it is tried
again every few seconds, and its delivery stays unacknowledged. A move of a delivery that the broker has taken back meanwhile (its
channel is gone) is refused before anything is published.

Limits: what is published and has no entry yet, when a worker dies, is delivered once more. A worker that dies in the milliseconds
between the first entry and the first refusal leaves a move without an event.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import deque
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
    from collections.abc import Callable, Iterable

    from ...messages.events import Event
    from .journal.entries import Moved
    from .names import AmqpNames

#: Moves that go out together, and the bytes of their messages.
MAX_MOVES, MAX_BYTES = 256, 8 * 1024 * 1024
#: Seconds: between two attempts to reach the broker; before what it would not take is tried again; for a confirmation to come,
#: unless the broker has said that it is blocked.
FIRST_WAIT, MAX_WAIT = 0.05, 2.0
QUARANTINE = 3.0
TIMEOUT = 30.0
#: Seconds that moves wait for others to go with them, and how many are enough to go at once.
LINGER, ENOUGH = 0.02, 64
#: How often a batch is tried together before its moves are tried one by one.
MAX_TOGETHER = 3
#: What is the broker's for now, and no move's fault.
NOT_NOW = (OSError, BrokerUnavailable)

#: What py-amqp raises where a message or a name has no form in AMQP, before it sends any of it.
UNWRITABLE = (FrameSyntaxError, struct.error, UnicodeError, OverflowError, RecursionError)

Address = tuple[str, str]

#: Notified when a move has ended.
ENDED = threading.Condition()


@dataclass(slots=True, eq=False)
class Move:
    """One move: what is published where, what is recorded, and who is told.

    `prepare` declares what the target needs, and answers False where that may not be made: then nothing has changed (`MISSING`).
    `is_current` says whether the delivery is still ours to end. What cannot be routed is tried again and again, unless it may not
    wait: then that, too, is `MISSING`. `moved` and `ended_message` are what the journal is told of it. `further` is recorded
    together with `event`.
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
    is_there: bool = False
    answer: Answer | None = None

    def wait(self, seconds: float) -> bool:
        """Wait until it is over, at most this long; whether it is. Hardly anybody waits: one condition serves all moves."""
        with ENDED:
            return ENDED.wait_for(lambda: self.answer is not None, seconds)

    def told(self, numbers: Numbering) -> list[tuple[str, Event]]:
        """Its events, each with its id: the same whenever it is asked."""
        if self.event is None:
            return []
        self.event_id = self.event_id or numbers.next_id()
        self.further = tuple(replace(each, event_id=each.event_id or numbers.next_id()) for each in self.further)
        return [(self.event_id, self.event), *((each.event_id, each) for each in self.further)]

    def end(self, answer: Answer) -> None:
        """It is over: tell those who wait for it."""
        self.answer = answer
        try:
            self.then(answer)
        except Exception:  # noqa: BLE001 - the move is carried out, and the thread must go on
            log.exception("transition.unheard", tag="")
        with ENDED:
            ENDED.notify_all()


class Publisher:
    """The thread and its connection.

    `connect` opens a new kombu connection, `declare` declares the outcome log on one; `ended` is called when moves were told that
    they have ended, once for all of them.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        names: AmqpNames,
        declare: Callable[[Any], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect, self._names, self._declare, self._ended = connect, names, declare, ended
        self._numbers = Numbering()
        self._line: deque[Move] = deque()
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
        #: Whether the outcome log did not take what was last recorded.
        self._was_refused = False
        #: So many go at once, without waiting for others.
        self.enough = 1

    # what others ask for

    def submit(self, move: Move) -> Move:
        """Put the move in line; it never fails."""
        with self._news:
            self._begin()
            self._line.append(move)
            if len(self._line) in {1, self.enough}:
                self._news.notify()
        return move

    def drain(self, seconds: float) -> bool:
        """Wait until all that was asked for is carried out, or quarantined, at most this long; False where something waits."""
        deadline = time.monotonic() + seconds
        while (self._line or self._under_way) and time.monotonic() < deadline:
            time.sleep(0.005)  # at the end of a worker's life, when nothing else is left to do
        return not self._line and not self._under_way

    def waiting(self) -> int:
        """How many moves are not carried out."""
        return len(self._line) + self._under_way + len(self._quarantined)

    def close(self) -> None:
        """End the thread after what is under way, and close the connection."""
        with self._news:
            self._stopped = True
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _begin(self) -> None:
        """The thread, once for each process: a fork takes none along."""
        if self._pid != os.getpid():
            self._pid, self._thread, self._under_way = os.getpid(), None, 0
            self._kombu = self._channel = None
        if self._thread is None or not self._thread.is_alive():
            self._stopped = False
            self._thread = threading.Thread(target=self._run, name="redelivery-publisher", daemon=True)
            self._thread.start()

    # the thread

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                break
            self._carry_out(batch)
            self._under_way = 0
        self._disconnect()

    def _carry_out(self, batch: list[Move]) -> None:
        """Try until each has ended, or was quarantined; a move that fails by itself does not hold the others for ever."""
        wait, failures = FIRST_WAIT, 0
        while batch:
            tried = batch if failures < MAX_TOGETHER else batch[:1]
            try:
                self._carry(tried)
            except Exception as exc:  # noqa: BLE001 - whatever it is, nothing was acknowledged, and the thread must go on
                failures += 1
                error = f"{type(exc).__name__}: {exc}"
                self._disconnect()
                if self._stopped and failures > 1:
                    return
                if failures > MAX_TOGETHER and not isinstance(exc, NOT_NOW):
                    log.error("transition.failed", tag="", error=error, again_in=QUARANTINE, waiting=self.waiting())
                    self._quarantined.append((time.monotonic() + QUARANTINE, tried[0]))
                else:
                    log.warning("publisher.waiting", error=error, waiting=self.waiting())
                    time.sleep(wait)
                    wait = min(wait * 2, MAX_WAIT)
            batch = [move for move in batch if move.answer is None and not self._is_quarantined(move)]
        self._was_broken = False

    def _is_quarantined(self, move: Move) -> bool:
        return any(move is each for _, each in self._quarantined)

    def _next(self) -> list[Move] | None:
        """The moves to carry out together, once there are some; None where the publisher is closed."""
        with self._news:
            while True:
                now = time.monotonic()
                due = [move for at, move in self._quarantined if at <= now]
                if due:
                    self._quarantined = [(at, move) for at, move in self._quarantined if at > now]
                    self._line.extendleft(reversed(due))
                if self._line:
                    self._linger()
                    return self._taken()
                if self._stopped:
                    return None
                self._news.wait(min((at for at, _ in self._quarantined), default=now + 3600) - now)

    def _linger(self) -> None:
        """Wait a moment for more: each turn of this thread takes the interpreter from the worker's own."""
        until = time.monotonic() + LINGER
        while len(self._line) < self.enough and not self._stopped and (left := until - time.monotonic()) > 0:
            self._news.wait(left)

    def _taken(self) -> list[Move]:
        batch: list[Move] = []
        size = 0
        while self._line and len(batch) < MAX_MOVES and size < MAX_BYTES:
            move = self._line.popleft()
            size += 0 if move.message is None else len(move.message.body)
            batch.append(move)
        self._under_way = len(batch)
        return batch

    def _carry(self, batch: list[Move]) -> None:
        """One attempt; raises what the connection raises."""
        for move in batch:
            if not move.is_there and not move.is_current():
                move.end(Answer.REFUSED)
        standing = [move for move in batch if move.answer is None]
        self._send(standing, is_again=self._was_broken)
        standing = [move for move in standing if not self._is_quarantined(move)]
        self._send([move for move in standing if move.answer is None], is_again=True)
        there = [move for move in standing if move.is_there]
        self._note_moved(HAS_STAYED, [move for move in standing if not move.is_there and not move.may_wait])
        for move in standing:
            if move.answer is None and not move.is_there and not move.may_wait:
                move.end(Answer.MISSING)
            elif move.answer is None and not move.is_there:
                log.error("transition.unroutable", exchange=move.target[0], routing_key=move.target[1], again_in=QUARANTINE)
                self._quarantined.append((time.monotonic() + QUARANTINE, move))
        self._tell(there)
        for move in there:
            move.end(Answer.DONE)
        self._ended()

    def _send(self, moves: Iterable[Move], *, is_again: bool) -> None:
        """Publish the messages that are not there yet, and wait for their confirmations."""
        sent: list[tuple[int, Move]] = []
        self._confirms.nacked, self._returned = set(), set()
        listed = [move for move in moves if not move.is_there]
        known = [move.moved for move in listed if move.moved is not None and move.may_wait]
        self._note(IS_MOVING, [moved.moving for moved in known if moved.moving])
        self._note(IS_TURNING, [moved.turning for moved in known if moved.turning])
        for move in listed:
            if move.message is None:
                move.is_there = True
                continue
            if not move.prepare(self._connection, is_again):
                move.end(Answer.MISSING)
                continue
            if not move.may_wait and move.moved is not None:
                # Written alone, before the message: a worker that gets the message again leaves it until more is known.
                self._note(IS_TURNING, [move.moved.turning])
            try:
                sent.append((self._publish(move.message, move.target), move))
            except UNWRITABLE as exc:  # nothing of it was sent
                self._put_aside(move, f"{type(exc).__name__}: {exc}")
        self._confirmed()
        for number, move in sent:
            move.is_there = number not in self._confirms.nacked and move.target not in self._returned

    def _put_aside(self, move: Move, error: str) -> None:
        """It cannot be written for AMQP: it holds no other move up."""
        if not move.may_wait:
            move.end(Answer.MISSING)
            return
        log.error("transition.failed", tag="", error=error, again_in=QUARANTINE, waiting=self.waiting())
        self._quarantined.append((time.monotonic() + QUARANTINE, move))

    def _tell(self, moves: list[Move]) -> None:
        """Record the events of what has been moved.

        A reader of an entry acknowledges the message, so its event must be there: once the log has refused one, entries wait until
        it has taken one.
        """
        events = [each for move in moves for each in move.told(self._numbers)]
        if not events:
            self._note_moved(HAS_MOVED, moves)
            return
        for is_again in (False, True):
            message = amqp.Message(packed(events), content_type="application/json", delivery_mode=PERSISTENT)
            target = (self._names.outcomes_exchange, self._names.outcomes)
            self._confirms.nacked, self._returned = set(), set()
            number, is_sure = self._publish(message, target), not self._was_refused
            if is_sure:
                self._note_moved(HAS_MOVED, moves)
            self._confirmed()
            if number not in self._confirms.nacked and target not in self._returned:
                if not is_sure:
                    self._note_moved(HAS_MOVED, moves)
                self._was_refused = False
                self._note(HAS_ENDED, [move.ended_message for move in moves if move.ended_message])
                return
            self._was_refused = True
            if is_sure:
                self._note_moved(IS_UNRECORDED, moves)
            if not is_again:
                self._declare(self._connection)
        msg = f"the outcome log {self._names.outcomes} takes no events: does a policy of the broker limit its length?"
        raise BrokerError(msg)

    def _note_moved(self, kind: bytes, moves: list[Move]) -> None:
        self._note(kind, [move.moved.digest for move in moves if move.moved is not None])

    def _note(self, kind: bytes, noted: list[bytes]) -> None:
        """Write these into the journal as one entry; where it takes none, nothing else must wait for it."""
        if noted:
            number = self._publish(entry(kind, noted), ("", self._names.journal))
            self._confirms.open.discard(number)

    # publishing

    def _publish(self, message: amqp.Message, target: Address) -> int:
        self._connection  # noqa: B018 - it is opened when it is first asked for
        self._channel.send_method(spec.Basic.Publish, "Bssbb", (0, *target, True, False), message)
        return self._confirms.published()

    def _confirmed(self) -> None:
        """Wait until the broker has answered for all that was published."""
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
        """The connection of py-amqp, with a channel that confirms."""
        if self._kombu is None:
            kombu = self._connect()
            connection = kombu.connection
            connection.on_blocked, connection.on_unblocked = self._blocked, self._unblocked
            channel = connection.channel()
            confirms = Confirms(channel)
            channel.events["basic_return"].add(self._on_return)
            self._kombu, self._channel, self._confirms = kombu, channel, confirms
            self._is_blocked = False
            self._declare(connection)
        return self._kombu.connection

    def _disconnect(self) -> None:
        self._was_broken = True  # what was there may be gone: it is declared again
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
