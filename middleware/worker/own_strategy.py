"""Tasks with a `Strategy` of their own, which runs their messages and acknowledges them.

Celery's own strategy hands a message to the pool, and the pool reports to the request how the task ended. Another strategy may
collect messages and run them together (celery-batches), and only acknowledges each message. So neither a success nor a failure of
its task is seen: its end is `unobserved`. A crash of its worker is seen. It counts once the strategy has the message, because the
strategy does not report when the task begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.imports import symbol_by_name
from celery.worker.strategy import default

if TYPE_CHECKING:
    from celery import Celery, Task

#: For the log and for `adopt`.
WHY = "acknowledges its messages itself: a failure makes no redelivery and no dead letter; only a crash counts"


def strategy_of(task: Task) -> str | None:
    """The name of a task's own `Strategy`, or of its class; None if the task has Celery's."""
    own = task.Strategy
    if symbol_by_name(own) is default:
        return None
    if isinstance(own, str):
        return own
    cls = next((cls for cls in type(task).__mro__ if "Strategy" in vars(cls)), type(task))
    return f"{cls.__module__}.{cls.__qualname__}"


def own_strategies(app: Celery) -> dict[str, str]:
    """The tasks with a `Strategy` of their own: task name → name of the strategy."""
    found = {name: strategy_of(task) for name, task in app.tasks.items()}
    return {name: strategy for name, strategy in found.items() if strategy is not None}
