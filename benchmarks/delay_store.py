"""The delay store with very many messages: their memory in a worker and the broker, and the rate of promotion."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.celery_side import QUEUE
from benchmarks.figures import less, more
from benchmarks.processor import resident_bytes
from benchmarks.sides import side
from benchmarks.stock import Stock

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["delay_store"]

HOUR = 3600.0


def delay_store(name: str, *, messages: int) -> dict[str, Figure]:
    """Delay `messages` messages for an hour while a worker runs. Then make them due, and let a dispatcher move them to their queue.

    The promotion is timed from the first batch in the queue.
    """
    with side(name) as here:
        stock = Stock(here.client)
        with here.worker() as worker:
            send = here.sender("noop")
            send()
            here.wait_until_empty()
            time.sleep(2)
            worker_before, broker_before = resident_bytes(worker.pid), _used(here.client)
            began = time.monotonic()
            stock.delay(messages, QUEUE, HOUR)
            filled = time.monotonic() - began
            time.sleep(3)
            grown = resident_bytes(worker.pid) - worker_before
            held = here.client.zcard(stock.keys.due(QUEUE))
            broker_grown = _used(here.client) - broker_before
        if held != messages:
            msg = f"{messages} messages were delayed, and {held} wait"
            raise RuntimeError(msg)
        due = stock.keys.due(QUEUE)
        here.client.zunionstore(due, {due: 0})  # an hour later: all of them are due
        here.client.zadd(stock.keys.destinations, {QUEUE: 0})
        return {
            "promoted_per_second": more(_promoted_per_second(here, messages), "messages/s"),
            "worker_growth": less(grown / 1e6, "MB"),
            "broker_memory": less(broker_grown / messages, "bytes/message"),
            "deferred_per_second": more(messages / filled, "messages/s"),
        }


def _promoted_per_second(here: Any, messages: int) -> float:
    command = [sys.executable, "-m", "redelivery", "-A", "benchmarks.app", "dispatcher"]
    with here.started(command) as process:
        while (first := here.client.llen(QUEUE)) == 0:
            if process.poll() is not None:
                raise RuntimeError(here.log())
            time.sleep(0.002)
        began = time.monotonic()
        while here.client.llen(QUEUE) < messages:
            time.sleep(0.005)
        return float(messages - first) / (time.monotonic() - began)


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])
