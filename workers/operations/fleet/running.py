"""What the workers run at this moment, and for how long, as each of them says by remote control.

The broker does not know it: it hands messages over ahead of time, and a start is recorded for suspects alone. Limits: a worker
without remote control, or a solo worker in the middle of a task, does not answer.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.exceptions import OperationalError

from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from celery import Celery


#: Our workers' own command, and the seconds in which a worker answers; longer than a living one takes to renew its lease.
ABOUT, TIMEOUT = "redelivery", 1.25
#: Seconds that are waited for all of it: on a slow broker the question itself takes longer than the answers.
LATEST = 2.5


@dataclass(frozen=True, slots=True)
class Running:
    """One task that runs, and for how many seconds it has."""

    task_id: str
    task: str
    queue: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Said:
    """What one worker says: how many tasks it runs, and those of them that have run longest."""

    runs: int
    running: tuple[Running, ...]

    @property
    def is_whole(self) -> bool:
        """Whether each of them is named."""
        return self.runs <= len(self.running)


def running_of(app: Celery, names: Collection[str]) -> dict[str, Said]:
    """What these workers of ours say, by the token of each one's lease; no longer than until all have answered.

    Nothing, if the broker is slow, or its user has no right to remote control.
    """
    wanted, answers = sorted(set(names)), list[Any]()
    if not wanted:
        return {}

    def ask() -> None:
        try:
            with app.connection_for_write() as connection:
                options: dict[str, Any] = {"reply": True, "timeout": TIMEOUT, "limit": len(wanted), "connection": connection}
                answers.extend(app.control.broadcast(ABOUT, {}, wanted, **options) or [])
        except (OperationalError, *BROKER_ERRORS) as exc:
            log.warning("workers.not_asked", error=str(exc))

    asking = threading.Thread(target=ask, name="redelivery-workers", daemon=True)
    asking.start()
    asking.join(LATEST)
    said = (each for answer in tuple(answers) if isinstance(answer, dict) for each in answer.values())
    return {each["owner"]: Said(each["runs"], tuple(_running(each["running"]))) for each in said if _is_whole(each)}


def _is_whole(said: Any) -> bool:
    """Whether a worker has said what it runs; an older one does not."""
    if not isinstance(said, dict):
        return False
    return isinstance(said.get("owner"), str) and isinstance(said.get("runs"), int) and isinstance(said.get("running"), list)


def _running(said: list[Any]) -> Iterator[Running]:
    for each in said:
        if isinstance(each, dict) and isinstance(each.get("ms"), (int, float)) and math.isfinite(each["ms"]):
            task_id, task, queue = (str(each.get(name) or "") for name in ("id", "task", "queue"))
            yield Running(task_id, task, queue, each["ms"] / 1000)
