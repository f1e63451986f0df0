"""The libraries beside Celery of `docs/integrations.md`: which of them an app has, and what to know about each, in a line.

A library that works inside the app is known by its module, which is loaded when the app is. One that runs beside it (Flower, a
scheduler of beat's, stubs) is known by its distribution, which is installed where the app is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One library: its distribution's name, the module that an app which uses it has loaded, if any, and what to know."""

    name: str
    module: str = ""
    know: str


NEIGHBOURS = (
    Neighbour(
        name="sentry-sdk",
        module="sentry_sdk",
        know="one event for each death, none for a redelivery; of each lost child Python's `multiprocessing` logs an error besides",
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
        know="the lock is held until the last attempt ends; after `worker_lost` it stays until its timeout; a redrive takes none",
    ),
    Neighbour(
        name="celery-singleton",
        module="celery_singleton",
        know="the lock is held until the last attempt ends; after `worker_lost` it stays for ever: set singleton_lock_expiry",
    ),
    Neighbour(
        name="django-celery-results",
        module="django_celery_results",
        know="one row for a task: RETRY while it waits, FAILURE when it is dead; a redriven one is overwritten",
    ),
    Neighbour(
        name="django-celery-beat",
        module="django_celery_beat",
        know="its ticks are published as all else, and redelivered; let beat's process load this app, so that they are recorded",
    ),
    Neighbour(
        name="celery-redbeat",
        know="its ticks are published as all else, and redelivered; let beat's process load this app, so that they are recorded",
    ),
    Neighbour(
        name="flower",
        know="shows a redelivery as RETRY, and a death as FAILURE; `dlq list` has what is dead, and `delayed list` what waits",
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
    """A line for each library that is there, by what this process has loaded and what is installed beside it."""
    for each in NEIGHBOURS:
        if each.module in sys.modules if each.module else _is_installed(each.name):
            yield f"{each.name}: {each.know}"


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
