"""Killed workers: the number of lost tasks, and the time until another worker runs the tasks of a dead one."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.figures import less
from benchmarks.sides import side

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Figure

__all__ = ["healing", "storm"]

#: The minimum and maximum seconds that a worker works before it is killed, and the seconds of each task.
EARLIEST, LATEST = 0.1, 0.5
WORK = 0.005
#: The visibility timeout of the plain side in a storm. Its default of an hour would be too long.
STORM_TIMEOUT = 5
#: Seconds after the visibility timeout: Celery checks it every 100 seconds.
RESTORED = 240


def storm(name: str, *, tasks: int, kills: int) -> dict[str, Figure]:
    """Kill workers again and again while they work through a queue, at random times with a fixed seed.

    `lost` tasks never ran, although no message waits or is held at the end. `twice` counts tasks that ran more than once.
    """
    chance = random.Random(kills)  # noqa: S311 - not for security
    with side(name, visibility_timeout=str(STORM_TIMEOUT)) as here:
        ran = here.folder / "ran"
        send = here.sender("mark")
        for number in range(tasks):
            send(number, str(ran), WORK)
        for _ in range(kills):
            with here.worker() as process:
                time.sleep(chance.uniform(EARLIEST, LATEST))
                os.killpg(process.pid, signal.SIGKILL)
        with here.worker():
            here.wait_until_empty()
        numbers = ran.read_text().split()
    twice = len(numbers) - len(set(numbers))
    return {"lost": less(tasks - len(set(numbers)), "tasks"), "twice": less(twice, "tasks")}


def healing(name: str, *, visibility_timeout: int) -> dict[str, Figure]:
    """Kill a worker in the middle of a task. Measures the seconds until another worker has begun the task.

    The plain side waits for Celery's visibility timeout, which is an hour by default. Redelivery has no such timeout.
    """
    with side(name, visibility_timeout=str(visibility_timeout)) as here:
        begun = here.folder / "begun"
        with here.worker(concurrency=1) as doomed:
            here.sender("held")(str(begun))
            _wait_for(begun, 1, 60)
            with here.worker(concurrency=1):
                killed = time.monotonic()
                os.killpg(doomed.pid, signal.SIGKILL)
                _wait_for(begun, 2, visibility_timeout + RESTORED)
                healed = time.monotonic() - killed
    return {"healed": less(healed, "s")}


def _wait_for(path: Path, lines: int, seconds: float) -> None:
    """Wait until a file has this number of lines. Raises `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        if time.monotonic() > deadline:
            msg = f"{path.name} has no line {lines} after {seconds} s"
            raise TimeoutError(msg)
        time.sleep(0.02)
