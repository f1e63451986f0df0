"""Dramatiq's side: `dramatiq MODULE` with its default middleware."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DramatiqSide"]

TASKS = "benchmarks.peers.dramatiq_tasks"


class DramatiqSide(Side):
    """Dramatiq."""

    def _actor(self, task: str) -> Any:
        return getattr(importlib.import_module(TASKS), task)

    def sender(self, task: str) -> Callable[..., Any]:
        send: Callable[..., Any] = self._actor(task).send
        return send

    def send_later(self, task: str, seconds: float, *args: Any) -> None:
        """Publish with a delay in whole milliseconds."""
        self._actor(task).send_with_options(args=args, delay=max(round(seconds * 1000), 0))

    def command(self, pool: str, concurrency: int) -> list[str]:
        """Processes of one thread, or one process with threads."""
        processes, threads = (concurrency, 1) if pool == "prefork" else (1, concurrency)
        return [sys.executable, "-m", "dramatiq", TASKS, "--processes", str(processes), "--threads", str(threads)]

    def idle_command(self, count: int) -> list[str]:
        return self.command("prefork", count)

    def waiting(self) -> int:
        """A message stays in its queue's hash until it is acknowledged."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hlen("dramatiq:default.msgs")
            pipe.hlen("dramatiq:default.DQ.msgs")
            return sum(map(int, pipe.execute()))
