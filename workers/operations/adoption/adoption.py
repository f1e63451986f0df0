"""Adoption: what `Redelivery(app)` changes for each task of an app, and what the app's developers should check.

A row for each task says what Celery does now and what redelivery will do. Further lines name options and settings whose effect
changes, and settings that are refused. Only settings and tasks are read, not the broker. Celery's own tasks (`celery.*`) are left
out.

Rules: an explicit option of a task wins (`acks_late`, `throws`, `countdown`, `retry_backoff`); of two retry limits the lower wins.

Each library of `docs/integrations.md` that is in use has a line. A library that works inside the app is found by its loaded module;
other libraries (Flower, a scheduler for beat, stubs) are found by their installed distribution.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.broker_url import check_broker_url
from redelivery.middleware.brokers.kombu.generic import capabilities_of
from redelivery.middleware.child.task_defaults import UNSET, explicit_app_setting, explicit_task_option
from redelivery.middleware.ports import Capability
from redelivery.middleware.worker.own_strategy import WHY, strategy_of
from redelivery.middleware.worker.startup.checks import summary
from redelivery.middleware.worker.startup.contradictions import contradictions
from redelivery.settings import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery, Task

    from redelivery.middleware.runtime import Runtime
    from redelivery.settings import RedeliveryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One task now, with plain Celery, and then, with redelivery.

    - `strategy`: the task's own `Strategy`; None if it uses Celery's. With its own `Strategy`, the policy counts only crashes.
    - `acks_late`, `rejects_when_lost`: the values (now, then).
    - `own_retries`: the limit of `self.retry` and `autoretry_for`; None for no limit.
    - `attempts`: the policy's limit; -1 for no limit.
    - `look_at`: remarks for a person.
    """

    task: str
    queue: str
    enabled: bool
    strategy: str | None
    acks_late: tuple[bool, bool]
    rejects_when_lost: tuple[bool, bool]
    autoretry_for: tuple[str, ...]
    own_retries: int | None
    attempts: int
    delays: str
    dead_letter_queue: str | None
    time_limits: tuple[float | None, float | None]
    look_at: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The values for `--json`."""
        return {
            **asdict(self),
            "acks_late": {"now": self.acks_late[0], "then": self.acks_late[1]},
            "rejects_when_lost": {"now": self.rejects_when_lost[0], "then": self.rejects_when_lost[1]},
            "time_limits": {"soft": self.time_limits[0], "hard": self.time_limits[1]},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The whole app. `refused` has a line for each setting with which no worker starts. `look_at` has remarks for a person."""

    mode: str
    changes: tuple[Change, ...]
    refused: tuple[str, ...]
    look_at: tuple[str, ...]


def adoption_of(runtime: Runtime) -> Adoption:
    """Return what changes for the app. Raises `ConfigurationError` if its settings or its `broker_url` are invalid."""
    app = runtime.app
    check_broker_url(app)
    app.finalize(auto=True)
    names = sorted(name for name in app.tasks if not name.startswith("celery."))
    return Adoption(
        mode=runtime.settings.mode,
        changes=tuple(_change(runtime, app.tasks[name]) for name in names),
        refused=tuple(contradictions(runtime)),
        look_at=(*_of_app(app), *neighbours_of()),
    )


def _change(runtime: Runtime, task: Task) -> Change:
    queue = queue_of(runtime.app, task.name)
    policy = runtime.policies.policy_for(queue, task.name)
    late, rejects = bool(task.acks_late), bool(task.reject_on_worker_lost)
    acts = runtime.enforces and policy.enabled
    return Change(
        task=task.name,
        queue=queue,
        enabled=policy.enabled,
        strategy=strategy_of(task),
        acks_late=(late, _then(task, "acks_late", late) if acts else late),
        rejects_when_lost=(rejects, True if acts else rejects),
        autoretry_for=tuple(each.__name__ for each in getattr(task, "autoretry_for", ())),
        own_retries=task.max_retries,
        attempts=policy.max_delivery_attempts,
        delays=summary(policy),
        dead_letter_queue=policy.dead_letter_queue_for(queue) if acts else None,
        time_limits=(task.soft_time_limit, task.time_limit),
        look_at=tuple(_of_task(runtime, task, policy)) if acts else (),
    )


def _then(task: Task, attribute: str, now: bool) -> bool:
    explicit = explicit_task_option(task, attribute)
    explicit = explicit_app_setting(task.app, f"task_{attribute}") if explicit is UNSET else explicit
    return True if explicit is UNSET else now


def queue_of(app: Celery, name: str) -> str:
    """Return the queue of this task if it is published without options."""
    route = app.amqp.router.route({}, name)
    queue = route.get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)


def _of_task(runtime: Runtime, task: Task, policy: RedeliveryPolicy) -> Iterator[str]:
    options, strategy = runtime.policies.options_of(task.name), strategy_of(task)
    if strategy is not None:
        yield f"its Strategy, {strategy}, {WHY}; the books call its end unobserved"
    yield from _of_crashes(runtime.app, task)
    if explicit_task_option(task, "reject_on_worker_lost") is False:
        yield "reject_on_worker_lost=False has no effect: a crash counts as an attempt; set enabled=false to keep it"
    if task.max_retries is None and policy.max_delivery_attempts != UNLIMITED:
        yield f"max_retries=None: until now it retried forever; now it stops after {policy.max_delivery_attempts} attempts"
    autoretry = getattr(task, "autoretry_for", ())
    if autoretry and task.max_retries is not None and policy.max_delivery_attempts != UNLIMITED:
        own, ours = task.max_retries + 1, policy.max_delivery_attempts
        if own != ours:
            who = "its own max_retries" if own < ours else "max_delivery_attempts"
            yield f"its limit is {own} attempts, and the policy's {ours}: {who} stops it"
    if autoretry:
        yield "autoretry_for keeps its delays; other exceptions are now redelivered too, by the policy"
    if autoretry and options is not None and options.has_strategy:
        yield "@redeliver and autoretry_for both decide: for what autoretry_for catches, its delays win; keep one"
    if task.time_limit is not None:
        yield "a hard time limit counts as an attempt; it does not end the task any more"


def _of_crashes(app: Celery, task: Task) -> Iterator[str]:
    if explicit_task_option(task, "acks_late") is False:
        yield "acks_late=False is kept: if its worker dies, the task is lost; remove it if the task may run twice"
    elif not task.acks_late and not _is_kept(app):
        yield "a worker that is killed loses it, as now: kombu takes a message off this broker when it hands it over"
    elif not task.acks_late:
        yield "it runs again if a worker dies while it runs: make it idempotent, or keep acks_late=False"


def _is_kept(app: Celery) -> bool:
    """Whether the broker keeps a message until it is acknowledged. AMQP does; its transport has no attribute `Channel`."""
    channel = getattr(app.connection_for_write().get_transport_cls(), "Channel", None)
    return channel is None or Capability.KEPT_UNTIL_ACKNOWLEDGED in capabilities_of(channel)


def _of_app(app: Celery) -> Iterator[str]:
    if explicit_app_setting(app, "task_acks_late") is False:
        yield "task_acks_late = False is kept: if a worker dies, its tasks are lost; remove it to have them delivered again"
    visibility = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    if visibility is not None:
        yield "visibility_timeout has no effect on messages that workers with redelivery hold: a lease of seconds replaces it"
    if app.conf.task_always_eager:
        yield "task_always_eager: nothing goes through the broker, and nothing is redelivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A library: its distribution's name, the module that an app loads (empty if none), and what to know about it."""

    name: str
    module: str = ""
    know: str


NEIGHBOURS = (
    Neighbour(
        name="sentry-sdk",
        module="sentry_sdk",
        know="one event for each death, none for a redelivery; for each child that dies, `multiprocessing` also logs an error",
    ),
    Neighbour(
        name="opentelemetry-instrumentation-celery",
        module="opentelemetry.instrumentation.celery",
        know="one span for each attempt, all under the span that published it; an attempt whose process dies has none",
    ),
    Neighbour(
        name="celery-batches",
        module="celery_batches",
        know="its tasks are not retried: a failed batch makes no redelivery and no dead letter; only a crash counts",
    ),
    Neighbour(
        name="celery-once",
        module="celery_once",
        know="the lock is held until the last attempt ends; after `worker_lost` until its timeout; a redrive takes no lock",
    ),
    Neighbour(
        name="celery-singleton",
        module="celery_singleton",
        know="the lock is held until the last attempt ends; after `worker_lost` it stays for ever: set singleton_lock_expiry",
    ),
    Neighbour(
        name="django-celery-results",
        module="django_celery_results",
        know="one row for a task: RETRY while it waits, FAILURE when it is dead; a redrive overwrites it",
    ),
    Neighbour(
        name="django-celery-beat",
        module="django_celery_beat",
        know="its tasks are published and redelivered like all others; let beat load this app, so that they are recorded",
    ),
    Neighbour(
        name="celery-redbeat",
        know="its tasks are published and redelivered like all others; let beat load this app, so that they are recorded",
    ),
    Neighbour(
        name="flower",
        know="shows a redelivery as RETRY, and a death as FAILURE; `dlq list` shows dead letters, `delayed list` delayed messages",
    ),
    Neighbour(
        name="celery-progress",
        module="celery_progress",
        know="shows a redelivery as complete and failed until the next attempt begins, as it does with any retry",
    ),
    Neighbour(
        name="apache-airflow-providers-celery",
        module="airflow.providers.celery",
        know="retries by itself: set max_delivery_attempts = 1 and persist_delivery_count = always for `execute_workload`",
    ),
    Neighbour(
        name="celery-types",
        know="`@redeliver` keeps the type of what it decorates; under `@app.task` these stubs themselves say Task[Any, Any]",
    ),
)


def neighbours_of() -> Iterator[str]:
    """Yield a line for each library that this process has loaded, or that is installed and needs no loading."""
    for each in NEIGHBOURS:
        if each.module in sys.modules if each.module else _is_installed(each.name):
            yield f"{each.name}: {each.know}"


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
