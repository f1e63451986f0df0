"""`Redelivery(app)`: the two lines that install everything.

It configures nothing early: it adds defaults below the app's own settings, two bootsteps, and a transport class to the connections
that the app will open. The settings are read when they are first needed.
"""

from __future__ import annotations

import functools
import random
import threading
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from redelivery.errors import BrokerError, ConfigurationError
from redelivery.middleware.connections import install_connections
from redelivery.middleware.decorator import options_of
from redelivery.middleware.logs import log
from redelivery.middleware.outbox import Outbox
from redelivery.middleware.owner import Owner
from redelivery.middleware.recovery import recover
from redelivery.middleware.tenacious import StrategyFailed, decide_with_tenacity
from redelivery.middleware.transports.base import Answer
from redelivery.middleware.transports.redis import RedisTransport
from redelivery.settings import RedeliverySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from redelivery.middleware.decision import Decision, Failure
    from redelivery.middleware.options import Options
    from redelivery.middleware.transports.base import Held
    from redelivery.settings import RedeliveryPolicy

__all__ = ["Redelivery"]

#: Seconds that a stopping worker waits for transitions which the broker has not answered.
DRAIN = 10.0


class Redelivery:
    """Retries, dead letters, delays and outcomes for every task of a Celery app.

    `settings` overrides `app.conf.redelivery`; both are mappings as `redelivery.settings` describes. A second `Redelivery` for the
    same app is refused.
    """

    def __init__(self, app: Celery, settings: Mapping[str, Any] | None = None) -> None:
        if getattr(app, "redelivery", None) is not None:
            msg = f"Redelivery is installed on {app!r} already: keep one of the two calls"
            raise ConfigurationError(msg)
        self.app = app
        self.shares_process = False
        self.worker = ""
        self.outbox = Outbox()
        self._given = settings
        self._options: dict[str, Options | None] = {}
        self._owner: Owner | None = None
        self._lock = threading.RLock()
        app.redelivery = self
        app.add_defaults({"task_acks_late": True, "task_reject_on_worker_lost": True})
        app.steps["consumer"].add("redelivery.middleware.ingress:Ingress")
        app.steps["consumer"].add("redelivery.workers.duties:Duties")
        install_connections(app)

    @functools.cached_property
    def settings(self) -> RedeliverySettings:
        """The settings, from the app's configuration, the environment and the TOML file. Raises `ConfigurationError`."""
        given = self._given if self._given is not None else self.app.conf.get("redelivery")
        return RedeliverySettings.load(given)

    @functools.cached_property
    def transport(self) -> RedisTransport:
        """The transitions, on a client of their own. Raises `BrokerUnavailable`, `BrokerError`."""
        return RedisTransport.of(self.app)

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

    def options_of(self, task: str) -> Options | None:
        """What the decorator of this task says; None where it has none, or where there is no such task."""
        if task not in self._options:
            if task not in self.app.tasks:
                return None
            self._options[task] = options_of(self.app.tasks[task])
        return self._options[task]

    def decide(self, task: str, policy: RedeliveryPolicy, failure: Failure, **asked: Any) -> Decision:
        """What follows from a failure of this task, by its strategies and its policy. `asked` is for `decide_with_tenacity`."""
        try:
            decided = decide_with_tenacity(self.options_of(task), policy, failure, random=random, **asked)
        except StrategyFailed as failed:
            log.exception("decision.failed", task=task)
            decided = failed.decision
        assert decided is not None  # noqa: S101 - only a result can be accepted
        return decided

    def is_enabled(self, task: str, queue: str | None = None) -> bool:
        """Whether this task obeys the settings at all; Celery's own tasks (`celery.*`) do."""
        return self.policy_for("" if queue is None else queue, task).enabled

    def begin(self, worker: str) -> None:
        """A worker's consumer has connected: claim what it will hold; after a lost connection, say what it still holds."""
        with self._lock:
            self.worker = worker
            if self._owner is None:
                try:
                    self._owner = Owner(self.transport, worker)
                except BrokerError as exc:  # as Celery's consumer knows it: it connects again
                    raise ConnectionError(str(exc)) from exc
            owner = self._owner
            if not owner.is_alive():
                owner.begin()
                return
        keep, suspects = self._standing(owner)
        for held in suspects:
            recover(self, held, was_started=False, worker=worker, now_ms=owner.now_ms())
            owner.held.pop(held.tag, None)
        given_back = owner.release(keep | self.outbox.tags())
        log.info("owner.reconnected", worker=worker, holds=len(keep), suspects=len(suspects), given_back=given_back)

    def end(self) -> None:
        """The worker stops: wait for what the broker has not answered, then give back what has not run."""
        owner = self._owner
        if owner is None:
            return
        if not self.outbox.drain(DRAIN):
            log.error("outbox.abandoned", waiting=len(self.outbox), why="the broker does not answer; the lease will end")
            return
        running, suspects = self._standing(owner)
        given_back = owner.release(keep=running | {each.tag for each in suspects})
        if owner.held:
            log.warning(
                "owner.stopped", worker=self.worker, running=len(owner.held), why="tasks were still running; the lease will end"
            )
        else:
            self.transport.unregister(owner.token)
        log.info("owner.released", worker=self.worker, given_back=given_back)
        self._owner = None

    @staticmethod
    def _standing(owner: Owner) -> tuple[set[str], list[Held]]:
        """The tags of what runs here, and the messages of which nobody can tell: handed to the pool, not known to have begun."""
        requests = [(held, held.request) for held in list(owner.held.values()) if held.request is not None]
        running = {held.tag for held, request in requests if request.is_running()}
        return running, [held for held, request in requests if held.tag not in running and request.was_handed_over()]

    def start(self, tag: str) -> None:
        """Record that a message is about to run. Raises `celery.exceptions.Ignore` where it was given to another worker."""
        if self.transport.start(tag) is Answer.REFUSED:
            log.warning("start.refused", tag=tag, why="the message was given to another worker")
            msg = "the message was given to another worker"
            raise Ignore(msg)
