"""A result backend that refuses to store states, like a locked database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from celery.backends.redis import RedisBackend

__all__ = ["Refusing"]

#: The number of refusals of each task's state in this process.
refused: Counter[tuple[str, str]] = Counter()


class Refusing(RedisBackend):
    """Refuses each state as often as the task's argument `refuse` says."""

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:
        request = kwargs.get("request")
        said = {} if request is None else dict(request.kwargs or {}).get("refuse", {})
        if refused[task_id, state] < said.get(state, 0):
            refused[task_id, state] += 1
            message = "database is locked"
            raise sqlite3.OperationalError(message)
        return super().store_result(task_id, result, state, *args, **kwargs)
