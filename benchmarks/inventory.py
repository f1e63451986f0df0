"""The inventory of a queue with very many messages: how long it blocks the broker, and whether a worker notices it.

The messages wait in a queue without a consumer, while tasks are published at a steady rate and a worker runs them. The broker's
slow log has the time of each command. That time includes waits for a processor, so the longest commands of the worker and the
publisher, before and during the inventory, are reported, too. The broker's processor time for each page of the queue is measured
while no other client sends commands.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from benchmarks.figures import less, percentile
from benchmarks.processor import ran_ms
from benchmarks.sides import side
from benchmarks.stamps import late_ms
from benchmarks.stock import QUEUE, Stock
from redelivery.workers.brokers.redis.pages import list_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figure

__all__ = ["inventory"]

#: Published tasks in a second, and seconds of publishing before the inventory.
PER_SECOND, BEFORE = 100, 10.0
#: Milliseconds from which a command counts as slow, and from which the slow log has it.
SLOW_MS, LOGGED_MS = 5.0, 0.5
#: Seconds between two pages.
PAUSE = 0.001
#: The commands of an inventory, which a worker and a publisher do not use.
READS = {b"LRANGE", b"HSCAN", b"SCAN", b"XRANGE", b"ZMSCORE", b"ZRANGE"}


def inventory(name: str, *, messages: int) -> dict[str, Figure]:
    """The effect of `redelivery inventory export` on other clients. Raises `RuntimeError` if a message is missing."""
    with side(name) as here:
        Stock(here.client).wait(messages)
        pages = _pages(here)
        with here.worker():
            return _meanwhile(here, messages) | {
                "page_processor_p50": less(percentile(pages, 0.5), "ms"),
                "page_processor_p99": less(percentile(pages, 0.99), "ms"),
                "page_processor_longest": less(max(pages), "ms"),
            }


def _pages(here: Any) -> list[float]:
    """The broker's processor time (ms) for each page of the queue."""
    broker, pages = here.server.process.pid, list_pages(here.client, QUEUE)
    took: list[float] = []
    while True:
        before = ran_ms(broker)
        page = next(pages, None)
        time.sleep(PAUSE)  # then the broker waits again, and its processor time is up to date
        if page is None:
            return took
        took.append(ran_ms(broker) - before)


def _meanwhile(here: Any, messages: int) -> dict[str, Figure]:
    """Run the command while a worker and a publisher are active."""
    here.client.config_set("slowlog-log-slower-than", round(LOGGED_MS * 1000))
    here.client.config_set("slowlog-max-len", 1_000_000)
    here.client.slowlog_reset()
    until = time.monotonic() + BEFORE
    before = _started(here, "before", lambda: time.monotonic() < until)
    plain = _took(here, reads=False)
    here.client.slowlog_reset()
    command = [
        sys.executable,
        "-m",
        "redelivery",
        "-A",
        "benchmarks.app",
        "inventory",
        "export",
        "--to",
        str(here.folder / "taken"),
    ]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        during = _started(here, "during", lambda: process.poll() is None)
    seconds = time.monotonic() - began
    took, others = _took(here, reads=True), _took(here, reads=False)
    rows = parquet.read_table(here.folder / "taken" / "inventory.parquet", columns=["task_id"])["task_id"].to_pylist()
    if process.returncode or len(rows) != len(set(rows)) or len(rows) < messages:
        msg = f"exit code {process.returncode}: {len(rows)} rows of {len(set(rows))} tasks, and {messages} messages wait"
        raise RuntimeError(msg)
    return {
        "longest_command": less(max(took, default=0), "ms"),
        "slow_commands": less(sum(each > SLOW_MS for each in took), "commands"),
        "longest_of_others_before": less(max(plain, default=0), "ms"),
        "longest_of_others_meanwhile": less(max(others, default=0), "ms"),
        "start_p99_before": less(percentile(before, 0.99), "ms"),
        "start_p99_meanwhile": less(percentile(during, 0.99), "ms"),
        "start_longest_meanwhile": less(max(during), "ms"),
        "inventory": less(seconds, "s"),
    }


def _took(here: Any, *, reads: bool) -> list[float]:
    """The times (ms) of the logged commands, either of the inventory or of all other clients."""
    logged = here.client.slowlog_get(-1)
    return [each["duration"] / 1000 for each in logged if (each["command"].split(maxsplit=1)[0].upper() in READS) == reads]


def _started(here: Any, name: str, goes_on: Callable[[], bool]) -> list[float]:
    """Publish tasks while `goes_on()`. Returns the milliseconds from each call to its task, and checks that each ran once."""
    stamp, path, count = here.sender("stamp"), here.folder / name, 0
    due = time.time()
    while goes_on():
        due += 1 / PER_SECOND
        time.sleep(max(due - time.time(), 0))
        stamp(time.time(), str(path))
        count += 1
    here.wait_until_empty()
    return late_ms(path, expected=count)
