"""The deadlines of an app's policies, for a file: the books cannot read the app's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.settings.sources import OVERRIDE_QUEUES, OVERRIDE_TASKS, QUEUES, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.runtime import Runtime

FIELD = "deadline"


def deadlines_of(runtime: Runtime) -> list[dict[str, Any]]:
    """Return the patterns that set a deadline. The first pattern that matches a task or its queue counts.

    Each has the pattern of a `queue` or of a `task`, and `seconds`; null means no deadline.
    """
    decorated = ((name, runtime.policies.options_of(name)) for name in sorted(runtime.app.tasks))
    of_tasks = [{"task": name, "seconds": each.fields[FIELD]} for name, each in decorated if each and FIELD in each.fields]
    overriding = [*_rows(runtime, OVERRIDE_TASKS, "task"), *_rows(runtime, OVERRIDE_QUEUES, "queue")]
    return [*overriding, *of_tasks, *_rows(runtime, TASKS, "task"), *_rows(runtime, QUEUES, "queue")]


def _rows(runtime: Runtime, table: str, what: str) -> Iterator[dict[str, Any]]:
    rows = [row for row in runtime.settings.rows if row.table == table and FIELD in row.fields]
    for row in reversed(sorted(rows, key=lambda row: row.pattern.specificity)):  # noqa: C413 - of equal patterns, the later one counts
        yield {what: row.pattern.text, "seconds": row.fields[FIELD]}
