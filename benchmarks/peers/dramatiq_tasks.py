"""Dramatiq's tasks; the broker comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.stamps import write_stamp

__all__ = ["failing", "noop", "stamp"]


class Ready(dramatiq.Middleware):
    """Reports that a worker process consumes."""

    def after_worker_boot(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:  # noqa: ARG002 - Dramatiq's hook
        Path(f"{os.environ['BENCH_READY']}.{os.getpid()}").touch()


broker = RedisBroker(url=f"unix://{os.environ['BENCH_SOCKET']}")  # type: ignore[no-untyped-call]
broker.add_middleware(Ready())
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(*_: Any) -> None:
    """Does nothing."""


@dramatiq.actor(max_retries=4)
def failing() -> None:
    """Fails: five attempts, exactly a second apart. Dramatiq's own backoff has random delays."""
    msg = "again"
    raise dramatiq.Retry(msg, delay=1000)


@dramatiq.actor
def stamp(since: float, path: str) -> None:
    write_stamp(since, path)
