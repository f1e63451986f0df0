"""Dead letters: the rate of a redrive, and the time to show the first page of very many."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.celery_side import QUEUE
from benchmarks.figures import less, more
from benchmarks.sides import side
from benchmarks.stock import Stock
from redelivery.middleware.brokers.redis.broker import RedisBroker
from redelivery.middleware.brokers.redis.keys import Keys
from redelivery.workers.operations.letters.dead_letters import newest
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive

if TYPE_CHECKING:
    from benchmarks.figures import Figure

__all__ = ["first_page", "redriven"]

LETTERS = f"DLQ.{QUEUE}"
PAGE, LOOKS = 50, 20


def redriven(name: str, *, letters: int) -> dict[str, Figure]:
    """Send dead letters back to their queue, as `redelivery dlq redrive` does."""
    with side(name) as here:
        Stock(here.client).kill(letters, QUEUE, LETTERS)
        began = time.monotonic()
        result = redrive(RedisBroker(here.client, Keys()), LETTERS, Filter())
        seconds = time.monotonic() - began
        if result.moved != letters or here.client.llen(QUEUE) != letters:
            msg = f"{letters} letters were to go back: {result.to_dict()}"
            raise RuntimeError(msg)
        return {"redriven_per_second": more(letters / seconds, "letters/s")}


def first_page(name: str, *, letters: int) -> dict[str, Figure]:
    """Read the newest page of dead letters and make it into rows: the median time and the longest."""
    with side(name) as here:
        Stock(here.client).kill(letters, QUEUE, LETTERS)
        transport, took = RedisBroker(here.client, Keys()), []
        for _ in range(LOOKS):
            began = time.perf_counter()
            rows = [letter.to_row() for letter in newest(transport, LETTERS, PAGE)]
            took.append((time.perf_counter() - began) * 1000)
            if len(rows) != min(PAGE, letters):
                msg = f"the page has {len(rows)} letters"
                raise RuntimeError(msg)
        return {"first_page": less(statistics.median(took), "ms"), "first_page_longest": less(max(took), "ms")}
