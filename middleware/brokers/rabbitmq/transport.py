"""The transitions on RabbitMQ: publish with confirm and `mandatory`, record, then acknowledge (`publisher`).

A transition is only submitted, and carried out as soon as the broker answers: `DONE` means that it is submitted. A call waits only
for a move to a dead-letter queue that we may not create. Limits: after a crash between two steps, a moved message is delivered
again, unless the journal shows the move; delays are whole seconds, rounded up; no message goes back to a queue's head; the broker's
clock cannot be read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, IrrecoverableChannelError, ResourceLocked
from kombu.exceptions import OperationalError

from redelivery.errors import BrokerError, ConfigurationError

from ...logs import log
from ...messages.events import Outcome
from ...messages.steps import opened, released, sealed
from ...ports import Answer, Capability, Successor
from ..broker_url import unanswered
from ..deliveries import WithoutLeases
from .consuming.deliveries import ChannelClaim
from .consuming.start_markers import Starts, start_of
from .delays import waiting
from .journal.entries import digest_of, moved_of
from .journal.reader import Journal
from .kept_connection import KeptConnection
from .messages import home_of, message_of
from .names import AmqpNames
from .policies import warn_of_bypasses, warn_of_policies
from .publisher import QUARANTINE, Move, Publisher
from .topology import (
    bind_to_delays,
    declare_delays,
    declare_journal,
    declare_letters,
    declare_outcomes,
    has_exchange,
    has_queue,
    max_log_bytes,
    queue_type_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from celery import Celery
    from celery.worker.consumer import Consumer

    from ...messages.events import Event
    from ...policy.resolver import Pace
    from ...ports import Held, Redeliveries, Session, TaskResult

#: Seconds to wait for a move to a dead-letter queue that we may not create.
MAX_LOOK = 30.0


class AmqpTransport(WithoutLeases):
    """The transitions; safe to call from any thread."""

    capabilities = frozenset(
        {
            Capability.KEPT_UNTIL_ACKNOWLEDGED,
            Capability.STARTS,
            Capability.BROKER_DELAYS,
            Capability.DELAY_STORE_LISTING,
            Capability.CANCEL_DELAYED,
            Capability.PROMOTE_DELAYED,
            Capability.DEAD_LETTER_QUEUES,
            Capability.OUTCOME_LOG,
            Capability.REDELIVERY_COUNTS,
        }
    )

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.keys = AmqpNames()
        self.claim: ChannelClaim | None = None
        self._kept = KeptConnection(self.connect)
        self.publisher = Publisher(self.connect, self.keys, self.declare_outcomes, self._settled)
        self._ready: set[tuple[str, str]] = set()
        #: When the delay store may be checked again (monotonic seconds).
        self._check_delays_at = 0.0
        self._starts = Starts(self.connect)
        self._journal = Journal(self.connect, self.keys.journal)
        self._has_journal = False
        #: Tag → name of the recorded start, for messages that this worker holds.
        self._begun: dict[str, str] = {}

    @classmethod
    def of(cls, app: Celery) -> AmqpTransport:
        """The transitions on the broker of this app. Raises `BrokerUnavailable`, `BrokerError`."""
        transport = cls(app)
        with transport.connect():
            return transport

    def connect(self) -> Any:
        """A new open kombu connection. Raises `BrokerUnavailable` if nothing answers, `BrokerError` if it is refused."""
        connection = self.app.connection_for_write(failover_strategy="round-robin")  # another may name the same address again
        connection.transport_options["heartbeat"] = 0  # a waiting connection would send none, and the broker would close it
        try:  # each address of a list once; a single address twice
            connection.ensure_connection(max_retries=max(len(connection.alt) - 1, 1), reraise_as_library_errors=False)
        except OperationalError as exc:
            raise unanswered(connection.as_uri(), exc) from exc
        except (AccessRefused, *connection.connection_errors) as exc:
            if type(exc).__name__ not in {"AccessRefused", "NotAllowed"}:
                raise unanswered(connection.as_uri(), exc) from exc
            msg = f"broker {connection.as_uri()} refused the connection: {exc}; check user, password and virtual host in broker_url"
            raise BrokerError(msg) from exc
        return connection

    def asking(self) -> AbstractContextManager[Any]:
        """As `connect`, for one question, which must leave nothing open; the connection is kept for the next question."""
        return self._kept.asking()

    @property
    def session(self) -> Session:
        return self

    @property
    def redeliveries(self) -> Redeliveries:
        return self

    def claim_for(self, worker: str) -> ChannelClaim:
        self.claim = ChannelClaim(self, self.publisher, worker)
        return self.claim

    def attach(self, consumer: Consumer) -> None:
        """Declare what the connected consumer needs. Raises `ConfigurationError` if the broker refuses (rights, names, limits)."""
        self._ready.clear()
        connection = self.connect()
        with connection:
            made = connection.connection
            try:
                self.declare_outcomes(made)
                declare_delays(made, self.keys)
                with made.channel() as channel:
                    for queue in consumer.task_consumer.queues:
                        bind_to_delays(channel, queue.name, self.keys)
                        self._ready.add(("delay", queue.name))
            except (IrrecoverableChannelError, ResourceLocked) as exc:
                msg = f"the broker refuses what redelivery declares: {exc}"
                raise ConfigurationError(msg) from exc
            self._has_journal = declare_journal(made, self.keys.journal)  # last: a broker without streams may close the connection
        assert self.claim is not None  # noqa: S101 - the caller has begun it
        self.claim.attach(consumer)
        # The starts of lost messages stay on the broker: the next worker asks for them.
        self._begun = {tag: name for tag, name in self._begun.copy().items() if tag in self.claim.held}

    def acknowledge(self, tag: str, event: Event | None, result: TaskResult | None = None) -> Answer:  # noqa: ARG002 - no `FastPath`
        return self._carry(self._made(tag, event))

    def defer(
        self,
        tag: str,
        list_name: str,
        message: bytes,
        *,
        task_id: str,
        event: Event | None,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        first: bool = False,  # noqa: ARG002 - nothing can be put at a queue's head
        pace: Pace | None = None,  # noqa: ARG002 - a retry budget is refused at start
    ) -> Answer:
        """Move the message to the delay store for `delay_ms`, or until `due_ms`, in whole seconds, rounded up.

        If it need not wait, it goes directly back to its queue, behind all others; a redriven message goes to the exchange and key
        that it was first published to. A message with a longer delay than the delay store has waits in parts (`delays`).
        """
        now_ms = self.now_ms()
        wait_ms = (due_ms - now_ms if due_ms is not None else delay_ms) or 0
        waits = waiting(self.keys, list_name, message, wait_ms)
        if waits is None:
            is_redriven = event is not None and event.outcome == Outcome.REDRIVEN
            home = home_of(message, list_name) if is_redriven else ("", list_name)
            if not home[0]:
                return self._carry(self._made(tag, event, message, ("", list_name), arrives_in=list_name))
            return self._carry_home(tag, event, message, home, list_name)
        if wait_ms / 1000 > waits.seconds:
            log.info("delay.parted", task_id=task_id, queue=list_name, wanted=wait_ms / 1000, first=waits.seconds)
        seconds, prepare = waits.seconds, self._delay_preparer(list_name)
        return self._carry(self._made(tag, event, waits.message, waits.target, prepare, arrives_in=list_name, seconds=seconds))

    def dead_letter(
        self, tag: str, message: bytes, *, dead_letter_queue: str, queue: str, event: Event | None, must_exist: bool = False
    ) -> Answer:
        """Move the message to a dead-letter queue. A missing queue is created with its origin's type, unless it `must_exist`."""
        name = dead_letter_queue
        prepare = (lambda connection, _: has_queue(connection, name)) if must_exist else self._letters_preparer(name, queue)
        move = self.publisher.submit(self._made(tag, event, message, ("", name), prepare, arrives_in=name))
        if not must_exist:
            return Answer.DONE
        if not move.wait(MAX_LOOK):
            log.warning("transition.postponed", tag=tag, error="the broker does not answer")
        return move.answer or Answer.DONE

    def start(self, tag: str) -> Answer:
        held = None if self.claim is None else self.claim.held.get(tag)
        if held is not None:
            self._begun[tag] = name = start_of(opened(held.raw)["headers"])
            self._starts.note(name)
        return Answer.DONE if self.claim is None or held is not None or self.claim.holds(tag) else Answer.REFUSED

    def recorded_start(self, held: Held) -> str | None:
        self._begun[held.tag] = name = start_of(opened(held.raw)["headers"])
        return name if self._starts.has(name) else None

    def ask_moved(self, held: Held, letters: frozenset[str], then: Callable[[Successor, Sequence[Event]], None]) -> None:
        if self._has_journal and self.claim is not None:
            self.claim.leave(held.tag)  # while it waits for the answer, the worker may receive others
            self._journal.ask(digest_of(held.raw, held.queue), held.queue, letters, then)
        else:
            then(Successor.UNKNOWN, ())

    def release(self, held: Sequence[Held]) -> int:
        """Put messages that did not run back into their queues, behind all others, as if they had never been delivered."""
        for each in held:
            self.publisher.submit(self._made(each.tag, None, sealed(released(opened(each.raw))), ("", each.queue)))
        return len(held)

    def warn(self, queues: Sequence[str], letters: Iterable[str], management_url: str | None) -> None:
        warn_of_bypasses(self.app, queues)
        if management_url is not None:
            warn_of_policies(management_url, self.app, queues, letters, self.keys)

    def declare_outcomes(self, connection: Any) -> bool:
        """Declare the outcome log on a py-amqp connection; return whether it was missing. Raises the broker's errors."""
        return declare_outcomes(connection, self.keys, max_log_bytes(self.app))

    def has_queue(self, name: str) -> bool:
        with self.connect() as connection:
            return has_queue(connection.connection, name)

    def drain(self, seconds: float) -> int:
        """Wait at most this long until all moves are carried out and acknowledged; return how many are not."""
        is_done = self.publisher.drain(seconds)
        if self.claim is not None:
            self.claim.flush()
        return 0 if is_done else self.publisher.waiting()

    def close(self) -> None:
        """Close the connections when the worker stops, after the broker has stored the acknowledgements."""
        if self.claim is not None and not self.publisher.waiting():
            self.claim.rest()
        self._journal.close()
        self.publisher.close()
        for tag in list(self._begun):
            self._forget_start(tag)  # a stop is not a crash
        self._starts.close()

    def _carry(self, move: Move) -> Answer:
        self.publisher.submit(move)
        return Answer.DONE

    def _settled(self) -> None:
        if self.claim is not None:
            self.claim.settled()

    def _made(
        self,
        tag: str,
        event: Event | None,
        message: bytes | None = None,
        target: tuple[str, str] = ("", ""),
        prepare: Callable[[Any, bool], bool] = lambda _, __: True,
        *,
        seconds: int = 0,
        arrives_in: str = "",
    ) -> Move:
        claim = self.claim
        if claim is not None:
            claim.leave(tag)
        if message is None:
            self._forget_start(tag)  # before the event is confirmed: the next task may kill this worker first

        def then(answer: Answer) -> None:
            if claim is None or not tag:
                return
            if answer is not Answer.MISSING:
                self._forget_start(tag)  # not earlier: if the worker dies and the move is lost, the crash must count
            if answer is Answer.DONE:
                claim.settle(tag)
            elif answer is Answer.REFUSED:
                log.warning("transition.refused", tag=tag, why="its channel is gone: the broker delivers the message again")

        made = None if message is None else message_of(message, target=target)
        held = None if claim is None else claim.held.get(tag)
        queue = "" if held is None else held.queue
        current = (lambda: True) if claim is None else (lambda: claim.is_current(tag, queue))
        move = Move(event, then, made, target, prepare, current, event_id="" if event is None else event.event_id)
        if held is not None and self._has_journal:
            self._write_journal(move, held, message, seconds, arrives_in or queue)
        return move

    def _write_journal(self, move: Move, held: Held, message: bytes | None, seconds: int, arrives_in: str) -> None:
        if message is not None:
            events = () if move.event is None else (move.event,)
            said: dict[str, Any] = {"target": arrives_in, "events": events, "now_ms": self.now_ms()}
            move.moved = moved_of(held.raw, message, held.queue, seconds, **said)
        elif held.was_moved and move.event is not None:
            move.ended_message = digest_of(held.raw, held.queue)

    def _forget_start(self, tag: str) -> None:
        name = self._begun.pop(tag, None)
        if name is not None:
            self._starts.forget(name)

    def _declare_delays(self, connection: Any) -> None:
        """Declare missing parts of the delay store, at most once in a pause: many moves may fail at once, and ask for it."""
        if time.monotonic() < self._check_delays_at:
            return
        if declare_delays(connection, self.keys):
            self._ready.clear()  # the bindings of the queues may be gone, too
        self._check_delays_at = time.monotonic() + QUARANTINE

    def _delay_preparer(self, queue: str) -> Callable[[Any, bool], bool]:
        def prepare(connection: Any, is_again: bool) -> bool:
            if is_again or ("delay", queue) not in self._ready:
                self._declare_delays(connection)
                with connection.channel() as channel:
                    bind_to_delays(channel, queue, self.keys)
                self._ready.add(("delay", queue))
            return True

        return prepare

    def _letters_preparer(self, name: str, queue: str) -> Callable[[Any, bool], bool]:
        def prepare(connection: Any, is_again: bool) -> bool:
            if is_again or ("letters", name) not in self._ready:
                declare_letters(connection, name, queue_type_of(self.app, queue))
                self._ready.add(("letters", name))
            return True

        return prepare

    def _carry_home(self, tag: str, event: Event | None, message: bytes, home: tuple[str, str], queue: str) -> Answer:
        """Move the message to its first exchange and key, or directly to its queue if the exchange is gone or does not route it."""
        moves: list[Move] = []

        def prepare(connection: Any, is_again: bool) -> bool:
            if is_again or not has_exchange(connection, home[0]):
                moves[0].target = ("", queue)
            return True

        moves.append(self._made(tag, event, message, home, prepare, arrives_in=queue))
        return self._carry(moves[0])
