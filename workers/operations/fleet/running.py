"""Asks the workers by remote control which tasks they run now, and for how long.

The broker does not know this: workers prefetch messages, and only the starts of suspects are recorded. Limit: a worker without
remote control does not answer, nor does a solo worker that runs a task.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from celery import Celery

#: The command of workers with redelivery, and the seconds to wait for answers.
ABOUT, TIMEOUT = "redelivery", 1.25
#: The maximum seconds for sending the command and waiting for answers; on a slow broker the sending takes longer.
LATEST = 2.5


@dataclass(frozen=True, slots=True)
class Running:
    """One running task, and for how many seconds it has run."""

    task_id: str
    task: str
    queue: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Said:
    """One worker's answer: how many tasks it runs, and which tasks have run longest."""

    runs: int
    running: tuple[Running, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the answer names all running tasks."""
        return self.runs <= len(self.running)


def running_of(app: Celery, names: Collection[str]) -> dict[str, Said]:
    """Return the answers of these workers by the tokens of their leases, as soon as all have answered.

    Empty if the broker is slow, or if the user in `broker_url` has no right to remote control.
    """
    wanted, answers = sorted(set(names)), list[Any]()
    if not wanted:
        return {}

    def ask() -> None:
        try:
            with app.connection_for_write() as connection:
                options: dict[str, Any] = {"reply": True, "timeout": TIMEOUT, "limit": len(wanted), "connection": connection}
                answers.extend(app.control.broadcast(ABOUT, {}, wanted, **options) or [])
        except BROKER_ERRORS as exc:
            log.warning("workers.not_asked", error=str(exc))

    asking = threading.Thread(target=ask, name="redelivery-workers", daemon=True)
    asking.start()
    asking.join(LATEST)
    said = (each for answer in tuple(answers) if isinstance(answer, dict) for each in answer.values())
    return {each["owner"]: Said(each["runs"], tuple(_running(each["running"]))) for each in said if _is_whole(each)}


def _is_whole(said: Any) -> bool:
    """Whether an answer names running tasks; an older worker's answer does not."""
    if not isinstance(said, dict):
        return False
    return isinstance(said.get("owner"), str) and isinstance(said.get("runs"), int) and isinstance(said.get("running"), list)


def _running(said: list[Any]) -> Iterator[Running]:
    for each in said:
        if isinstance(each, dict) and isinstance(each.get("ms"), (int, float)) and math.isfinite(each["ms"]):
            task_id, task, queue = (str(each.get(name) or "") for name in ("id", "task", "queue"))
            yield Running(task_id, task, queue, each["ms"] / 1000)
