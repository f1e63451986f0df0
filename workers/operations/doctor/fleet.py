"""Asks the workers by remote control, with redelivery and without: the queues, version and clock of each.

Celery's commands say which queues a worker consumes, and whether its class of requests is redelivery's. Only workers with
redelivery then get redelivery's command: a plain worker would log an error. Limit: a worker without remote control does not answer,
nor does a solo worker that runs a task.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.policy.clock_skew import skew_ms

from ..fleet.running import ABOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from celery import Celery
    from kombu import Connection

#: Seconds to wait for answers.
TIMEOUT = 2.0
#: The module of redelivery's class of requests.
OURS = "redelivery.middleware.worker.request"
#: kombu's default, in seconds.
VISIBILITY_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker that answered. `version` is redelivery's version; None if the worker is too old to report it.

    `ahead_ms` is the least by which its clock is ahead of the broker's (negative: behind); None if the worker does not report its
    clock. `visibility_timeout` (seconds) is known for plain workers only.
    """

    name: str
    queues: tuple[str, ...]
    is_ours: bool
    version: str | None = None
    ahead_ms: int | None = None
    visibility_timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All workers that answered."""

    workers: tuple[Worker, ...] = ()

    @property
    def ours(self) -> list[Worker]:
        """The workers with redelivery."""
        return [each for each in self.workers if each.is_ours]

    @property
    def plain(self) -> list[Worker]:
        """The workers without redelivery."""
        return [each for each in self.workers if not each.is_ours]

    def consumers_of(self, queue: str) -> list[Worker]:
        """The workers that consume a queue."""
        return [each for each in self.workers if queue in each.queues]


def ask(app: Celery, now_ms: Callable[[], int]) -> Fleet:
    """Ask all workers. Their clocks are compared with `now_ms`. Raises the errors of the broker's driver."""
    with app.connection_for_write() as connection:
        broadcast = functools.partial(_broadcast, app, connection)
        queues = {name: _names(said) for name, said in broadcast("active_queues").items()}
        requests = broadcast("registered", queues, taskinfoitems=["Request"], builtins=True)
        ours = {name for name, said in requests.items() if OURS in str(said)}
        before = now_ms()
        answers = broadcast(ABOUT, ours)
        after = now_ms()
        plain = queues.keys() - ours
        conf = broadcast("conf", plain)
    workers = [
        Worker(
            name=name,
            queues=queues[name],
            is_ours=name in ours,
            version=_version(answers.get(name)),
            ahead_ms=_ahead(answers.get(name), before, after),
            visibility_timeout=_visibility(conf.get(name)) if name in plain else None,
        )
        for name in sorted(queues)
    ]
    return Fleet(workers=tuple(workers))


def _broadcast(
    app: Celery, connection: Connection, command: str, names: Iterable[str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Return the answers of these workers, as soon as all have answered; None: of all workers that answer in time."""
    wanted = None if names is None else sorted(names)
    if wanted == []:
        return {}
    limit = None if wanted is None else len(wanted)
    options: dict[str, Any] = {"reply": True, "timeout": TIMEOUT, "limit": limit, "connection": connection}
    answers = app.control.broadcast(command, arguments, wanted, **options) or []
    return {name: said for answer in answers for name, said in answer.items()}


def _names(said: Any) -> tuple[str, ...]:
    return tuple(str(each["name"]) for each in said if isinstance(each, dict) and "name" in each) if isinstance(said, list) else ()


def _version(said: Any) -> str | None:
    return str(said["version"]) if isinstance(said, dict) and "version" in said else None


def _ahead(said: Any, before_ms: int, after_ms: int) -> int | None:
    worker_ms = said.get("now_ms") if isinstance(said, dict) else None
    return skew_ms(before_ms, worker_ms, after_ms) if isinstance(worker_ms, int) else None


def _visibility(said: Mapping[str, Any] | Any) -> float | None:
    """Return a plain worker's `visibility_timeout`; None if the worker does not report its configuration."""
    if not isinstance(said, dict) or "error" in said:
        return None
    options = said.get("broker_transport_options")
    value = options.get("visibility_timeout") if isinstance(options, dict) else None
    return float(value) if isinstance(value, (int, float)) else VISIBILITY_TIMEOUT
