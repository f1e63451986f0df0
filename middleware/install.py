"""`Redelivery(app)`: the two lines that install everything.

It configures and finalises nothing early: it adds bootsteps, and a transport class to the connections that the app will open. The
settings are read when they are first needed, and the tasks are looked at when a worker starts.
"""

from __future__ import annotations

import functools
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from celery.exceptions import Ignore

from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.attempt import failed_of
from redelivery.middleware.broker_url import check_before_start
from redelivery.middleware.connections import install_connections
from redelivery.middleware.decorator import options_of
from redelivery.middleware.eviction import Bounds
from redelivery.middleware.logs import log, redacting
from redelivery.middleware.outbox import Outbox
from redelivery.middleware.owner import Owner
from redelivery.middleware.recovery import recover
from redelivery.middleware.tenacious import StrategyFailed, decide_with_tenacity
from redelivery.middleware.transports import transport_of
from redelivery.middleware.transports.base import Answer, Capability
from redelivery.settings import RedeliverySettings
from redelivery.settings.general import read_general

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from redelivery.middleware.decision import Decision, Failure
    from redelivery.middleware.header import Failed
    from redelivery.middleware.letter import Letter, LetterDecision
    from redelivery.middleware.options import Options
    from redelivery.middleware.transports.base import Held
    from redelivery.middleware.transports.redis import RedisTransport
    from redelivery.settings import RedeliveryPolicy

    Handler = TypeVar("Handler", bound=Callable[[Letter], LetterDecision])

__all__ = ["Redelivery"]

#: Seconds that a stopping worker waits for transitions which the broker has not answered.
DRAIN = 10.0
#: Queues and tasks are few; this only bounds what strange names can make a producer remember.
MOST_BOUNDS = 10_000


class Redelivery:
    """Retries, dead letters, delays and outcomes for every task of a Celery app.

    `settings` overrides `app.conf.redelivery`; both are mappings as `redelivery.settings` describes. `mode` overrides theirs:
    `"observe"` records outcomes and the decisions that would be taken, and changes nothing. A second `Redelivery` for the same app
    is refused.
    """

    def __init__(
        self,
        app: Celery,
        settings: Mapping[str, Any] | None = None,
        *,
        mode: Literal["enforce", "observe"] | None = None,
    ) -> None:
        if getattr(app, "redelivery", None) is not None:
            msg = f"Redelivery is installed on {app!r} already: keep one of the two calls"
            raise ConfigurationError(msg)
        self.app = app
        self.shares_process = False
        #: Whether a cold shutdown has begun.
        self.is_ending = False
        self.worker = ""
        self.outbox = Outbox(on_aside=self._make_room)
        self._given = settings
        self._mode = mode
        self.letter_handlers: dict[str, str] = {}
        self._options: dict[str, Options | None] = {}
        self._bounds: dict[tuple[str, str], Bounds | None] = {}
        self._owner: Owner | None = None
        self._lock = threading.RLock()
        app.redelivery = self
        app.steps["consumer"].add("redelivery.middleware.ingress:Ingress")
        app.steps["consumer"].add("redelivery.workers.duties:Duties")
        app.steps["consumer"].add("redelivery.workers.remote_control:RemoteControl")
        install_connections(app)
        check_before_start(app)

    @functools.cached_property
    def settings(self) -> RedeliverySettings:
        """The settings, from the app's configuration, the environment and the TOML file. Raises `ConfigurationError`."""
        given = self._given if self._given is not None else self.app.conf.get("redelivery")
        settings = RedeliverySettings.load(given)
        if settings.redact:
            redacting.add(self)
        return settings if self._mode is None else replace(settings, mode=read_general("mode", self._mode, "Redelivery"))

    @property
    def enforces(self) -> bool:
        """Whether the settings are carried out; false in `mode="observe"`."""
        return self.settings.mode == "enforce"

    @functools.cached_property
    def transport(self) -> RedisTransport:
        """The transitions, on a client of their own. Raises `BrokerUnavailable`, `BrokerError`.

        On another broker than Redis it is that broker's, which has the same transitions, and says in `capabilities` what it lacks.
        """
        found: RedisTransport = transport_of(self.app)
        return found

    @property
    def owner(self) -> Owner:
        """This worker's claim on what it holds. Raises `RuntimeError` outside a worker."""
        if self._owner is None:
            msg = "there is no owner outside a worker"
            raise RuntimeError(msg)
        return self._owner

    def policy_for(self, queue: str, task: str | None = None) -> RedeliveryPolicy:
        """What holds for this task on this queue."""
        options = None if task is None else self.options_of(task)
        return self.settings.policy_for(queue, task, decorator=None if options is None else options.fields).policy

    def dead_letter_handler(self, *queues: str, **options: Any) -> Callable[[Handler], Handler]:
        """Decorate the function that decides about the dead letters of these origin queues, in a worker that consumes their DLQ.

        It is given a `redelivery.Letter`, and returns what the letter's `redrive`, `archive`, `discard` or `park` returned.
        `options` are a Celery task's. Raises `ConfigurationError` where a queue has a handler already.
        """
        from redelivery.middleware.handling import dead_letter_handler  # noqa: PLC0415 - few apps have one

        return dead_letter_handler(self, queues, options)

    def options_of(self, task: str) -> Options | None:
        """What the decorator of this task says; None where it has none, or where there is no such task."""
        if task not in self._options:
            if task not in self.app.tasks:
                return None
            self._options[task] = options_of(self.app.tasks[task])
        return self._options[task]

    @functools.cached_property
    def keeps_time(self) -> bool:
        """Whether any policy says how long messages live or how late they may run; where none does, none is asked on arrival."""
        fields = ("max_time_to_live", "respect_time_to_live", "delivery_delay")
        decorated = (self.options_of(name) for name in self.app.tasks)
        rows = [*(row.fields for row in self.settings.rows), *(each.fields for each in decorated if each is not None)]
        return any(name in row for row in rows for name in fields)

    def bounds_of(self, queue: str, task: str) -> Bounds | None:
        """What a publication of this task to this queue must keep to; None where there is nothing. Raises `ConfigurationError`."""
        if not self.enforces:
            return None
        if (queue, task) not in self._bounds:
            if len(self._bounds) >= MOST_BOUNDS:
                self._bounds.clear()
            self._bounds[queue, task] = Bounds.of(self.policy_for(queue), self.policy_for(queue, task))
        return self._bounds[queue, task]

    def strategies_of(self, queue: str, task: str) -> Options | None:
        """What the decorator of this task says, but for the strategies that the settings' `override` for this queue beats."""
        options = self.options_of(task)
        if options is None or not options.has_strategy:
            return options
        return options.under(self.settings.policy_for(queue, task, decorator=options.fields).sources)

    def decide(self, queue: str, task: str, policy: RedeliveryPolicy, failure: Failure, **asked: Any) -> Decision:
        """What follows from a failure of this task, by its strategies and its policy. `asked` is for `decide_with_tenacity`."""
        try:
            decided = decide_with_tenacity(self.strategies_of(queue, task), policy, failure, random=random, **asked)
        except StrategyFailed as failed:
            log.exception("decision.failed", task=task)
            decided = failed.decision
        assert decided is not None  # noqa: S101 - only a result can be accepted
        return decided

    def failed_of(self, exc: BaseException, *, with_traceback: bool = True) -> Failed:
        """What an exception says, as far as messages store it."""
        return self.stored(failed_of(exc, with_traceback=with_traceback and self.settings.store_failure_texts))

    def stored(self, failed: Failed) -> Failed:
        """What messages store of a failure: with `store_failure_texts = false`, its type and fingerprint."""
        return failed if self.settings.store_failure_texts else replace(failed, message="", traceback="")

    def is_enabled(self, task: str, queue: str | None = None) -> bool:
        """Whether this task obeys the settings at all; Celery's own tasks (`celery.*`) do."""
        return self.policy_for("" if queue is None else queue, task).enabled

    def begin(self, worker: str) -> None:
        """A worker's consumer has connected: claim what it will hold; after a lost connection, say what it still holds."""
        with self._lock:
            self.worker = worker
            if not self.enforces:
                self._reach()
                return
            if self._owner is None:
                try:
                    self._owner = self._claim(worker)
                except BrokerError as exc:  # as Celery's consumer knows it: it connects again
                    raise ConnectionError(str(exc)) from exc
            if not self.has_leases:
                return  # the broker itself gives back what a dead worker held
            owner = self._owner
            token = owner.token
            if not owner.is_alive():
                owner.begin(token)
                return
        leaving = self.outbox.tags()  # they are over, and leave as soon as the broker hears of it
        keep, suspects = self._standing(owner)
        keep |= {held.tag for held in suspects if held.request.is_with_strategy}  # it has them still, and will run them
        suspects = [held for held in suspects if held.tag not in leaving | keep]
        for held in suspects:
            recover(self, held, started=None, worker=worker, now_ms=owner.now_ms())
            owner.held.pop(held.tag, None)
        given_back = owner.release(keep | leaving | self.outbox.tags())
        log.info("owner.reconnected", worker=worker, holds=len(keep), suspects=len(suspects), given_back=given_back)

    @property
    def has_leases(self) -> bool:
        """Whether this broker's messages are held under leases, and not by the broker itself."""
        return Capability.LEASES in self.transport.capabilities

    def _claim(self, worker: str) -> Owner:
        """What holds this worker's messages: an owner under a lease, or the transport's own."""
        transport: Any = self.transport
        claim: Owner = Owner(transport, worker) if self.has_leases else transport.claim_for(worker)
        return claim

    def _reach(self) -> None:
        """Where we only observe: the client that records is there."""
        try:
            self.transport  # noqa: B018 - it is made when it is first asked for
        except BrokerError as exc:
            raise ConnectionError(str(exc)) from exc

    def end(self) -> None:
        """The worker stops: wait for what the broker has not answered, then give back what has not run."""
        from celery.worker import state  # noqa: PLC0415 - a producer needs no worker's modules

        owner = self._owner
        if owner is not None and not self.has_leases:
            self._end_without_lease(owner)
            return
        if owner is None:
            self.outbox.drain(DRAIN)
            return
        if not self.outbox.drain(DRAIN):
            log.error("outbox.abandoned", waiting=len(self.outbox), why="the broker does not answer; the lease will end")
            return
        running, suspects = self._standing(owner)
        cut_off = [each for each in suspects if state.should_terminate or each.request.time_start is not None]
        for held in cut_off:  # by a cold shutdown: they have begun, or may have
            recover(self, held, started=None, worker=self.worker, now_ms=owner.now_ms())
            owner.held.pop(held.tag, None)
        given_back = owner.release(keep=running | self.outbox.tags())
        if owner.held:
            log.warning(
                "owner.stopped", worker=self.worker, running=len(owner.held), why="tasks were still running; the lease will end"
            )
        else:
            self.transport.unregister(owner.token)
        log.info("owner.released", worker=self.worker, given_back=given_back)
        self._owner = None

    def _end_without_lease(self, owner: Owner) -> None:
        """Give back what has not begun; what has, or may have, comes again marked, as soon as the connection is closed."""
        transport: Any = self.transport
        running, suspects = self._standing(owner)
        given_back = owner.release(keep=running | {held.tag for held in suspects} | self.outbox.tags())
        if not (self.outbox.drain(DRAIN) and transport.drain(DRAIN)):
            waiting = len(self.outbox) + transport.waiting()
            log.error("outbox.abandoned", waiting=waiting, why="the broker does not answer; the messages come again")
        log.info("owner.released", worker=self.worker, given_back=given_back)
        transport.close()
        self._owner = None

    def _make_room(self, tag: str) -> None:
        if self._owner is not None:
            self._owner.make_room(tag)

    @staticmethod
    def _standing(owner: Owner) -> tuple[set[str], list[Held]]:
        """The tags of what runs here, and the messages of which nobody can tell: handed to the pool, not known to have begun.

        The newest comes first: each that goes back is the next to be taken, and they are to be taken in their order.
        """
        requests = [(held, held.request) for held in reversed(list(owner.held.values())) if held.request is not None]
        running = {held.tag for held, request in requests if request.is_running()}
        return running, [held for held, request in requests if held.tag not in running and request.was_handed_over()]

    def start(self, tag: str) -> None:
        """Record that a message is about to run. Raises `celery.exceptions.Ignore` where it was given to another worker."""
        if self.transport.start(tag) is Answer.REFUSED:
            log.warning("start.refused", tag=tag, why="the message was given to another worker")
            msg = "the message was given to another worker"
            raise Ignore(msg)
