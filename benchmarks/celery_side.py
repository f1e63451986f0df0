"""Celery's sides: plain Celery with late acknowledgement, and redelivery."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.side import Side
from redelivery.middleware.brokers.redis.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

__all__ = ["QUEUE", "CelerySide"]

QUEUE = "celery"


@dataclass
class CelerySide(Side):
    """Plain Celery or redelivery, by its name. `visibility_timeout` is Celery's setting in seconds; empty means the default."""

    visibility_timeout: str = ""

    @property
    def addresses(self) -> dict[str, str]:
        """The address of the broker, and the app's other settings."""
        return {**super().addresses, "BENCH_VISIBILITY_TIMEOUT": self.visibility_timeout}

    @property
    def app(self) -> Celery:
        return importlib.import_module("benchmarks.app").app

    def _task(self, name: str) -> Any:
        return self.app.tasks[f"benchmarks.app.{'autoretried' if (name, self.name) == ('failing', 'plain') else name}"]

    def sender(self, task: str) -> Callable[..., Any]:
        return partial(self._task(task).delay)

    def send_later(self, task: str, seconds: float, *args: Any) -> None:
        self._task(task).apply_async(args, countdown=seconds)

    def command(self, pool: str, concurrency: int) -> list[str]:
        """The command of a worker, with Celery's defaults except gossip and mingle."""
        words = [sys.executable, "-m", "celery", "-A", "benchmarks.app", "worker", "-P", pool, "-c", str(concurrency)]
        return [*words, "-l", "WARNING", "--without-gossip", "--without-mingle"]

    def idle_command(self, count: int) -> list[str]:
        """The command of many solo workers."""
        return [sys.executable, "-m", "benchmarks.herd", str(count)]

    def ready(self, pool: str, concurrency: int) -> int:  # noqa: ARG002 - the main process reports for all
        """Only the main process reports that it consumes."""
        return 1

    def waiting(self) -> int:
        """The number of messages in the queue, held by workers, or in the delay store."""
        keys = Keys()
        with self.client.pipeline(transaction=False) as pipe:
            pipe.llen(QUEUE)
            pipe.hlen(keys.unacked)
            pipe.zcard(keys.due(QUEUE))
            return sum(map(int, pipe.execute()))
