"""RQ's side: its default worker, which forks for each job, and its scheduler for delayed jobs."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rq import Queue, Retry

from benchmarks.peers import rq_tasks
from benchmarks.side import Side

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RqSide"]


class RqSide(Side):
    """RQ, without results."""

    @cached_property
    def queue(self) -> Queue:
        return Queue(connection=self.server.client)

    def sender(self, task: str) -> Callable[..., Any]:
        retry = Retry(max=4, interval=1) if task == "failing" else None
        return partial(self.queue.enqueue, getattr(rq_tasks, task), result_ttl=0, retry=retry)

    def send_later(self, task: str, seconds: float, *args: Any) -> None:
        """Publish to the scheduler, which checks once a second."""
        self.queue.enqueue_in(timedelta(seconds=max(seconds, 0)), getattr(rq_tasks, task), *args, result_ttl=0)

    def command(self, pool: str, concurrency: int) -> list[str]:
        """The command of a worker. Raises `ValueError` for a pool of threads."""
        if pool != "prefork":
            msg = f"RQ has no pool {pool!r}"
            raise ValueError(msg)
        return self.idle_command(concurrency)

    def idle_command(self, count: int) -> list[str]:
        return [sys.executable, "-m", "benchmarks.peers.rq_worker", str(count)]

    def says_ready(self) -> int:
        return int(self.client.scard("rq:workers"))

    def waiting(self) -> int:
        """The number of jobs that are queued, being dequeued, running or scheduled."""
        with self.client.pipeline(transaction=False) as pipe:
            pipe.llen("rq:queue:default")
            pipe.llen("rq:queue:default:intermediate")
            pipe.zcard("rq:wip:default")
            pipe.zcard("rq:scheduled:default")
            return sum(map(int, pipe.execute()))
