"""A small day: the cost of `redelivery reconcile` from the shell, with its Java, with and without a class archive.

The command runs over the same events, with and without the archive in turns, and the medians count. On a busy machine, the
processor seconds are the most reliable figure. The time is that of the command; the processor seconds are those of all processes
that it started, because Java ends later.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import less

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.figures import Figure

__all__ = ["Run", "figures_of", "run", "small_day"]

#: An option of Linux's prctl: orphaned descendants become children of this process.
_SUBREAPER = 36
#: Writes the events if they do not exist, and prints their folder.
_PREPARE = """
import sys
from benchmarks.book_data import ordinary
from redelivery.workers.reconciliation.spark.session import session
with session(input_bytes=0) as spark:
    print(ordinary(spark, int(sys.argv[1])), end="")
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds of a command, and the processor seconds of all processes that it started."""

    seconds: float
    processor: float


def run(words: list[str], environment: Mapping[str, str]) -> Run:
    """Run a command, and wait for all processes that it started. Raises `RuntimeError` if the command fails."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    began, seconds, processor, failed = time.monotonic(), 0.0, 0.0, 0
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    command = os.posix_spawn(words[0], words, dict(environment), file_actions=silent)
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        processor += used.ru_utime + used.ru_stime
        if pid == command:
            seconds, failed = time.monotonic() - began, os.waitstatus_to_exitcode(status)
    if failed:
        msg = f"{words} ended with {failed}"
        raise RuntimeError(msg)
    return Run(seconds, processor)


def small_day(name: str, *, events: int, rounds: int = 5, embedded: bool = False) -> dict[str, Figure]:  # noqa: ARG001 - there is one side
    """The figures of the command. `embedded` uses PyPI's Java instead of the machine's."""
    # In its own process: `run` would also wait for the Java of a session here.
    prepare = [sys.executable, "-c", _PREPARE, str(events)]
    place = subprocess.run(prepare, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="redelivery-small-day-") as made:
        folder = Path(made)
        environment = _without_java(folder) if embedded else dict(os.environ)
        # A cache that is not a folder keeps nothing.
        caches = {"without_classes": os.devnull, "": str(folder / "cache")}
        sides = {side: environment | {"XDG_CACHE_HOME": cache} for side, cache in caches.items()}
        words = [sys.executable, "-m", "redelivery", "reconcile", "--quiet", "--json"]
        words += ["--outcomes", f"{place}/outcomes", "--inventory", f"{place}/inventory", "--output", f"{folder}/books"]
        runs: dict[str, list[Run]] = {"": [], "without_classes": [], "first": [run(words, sides[""])]}
        for _ in range(rounds):
            for side, variables in sides.items():
                runs[side].append(run(words, variables))
        return figures_of(runs)


def figures_of(runs: Mapping[str, list[Run]]) -> dict[str, Figure]:
    """The medians of each kind of run, by its name. The usual kind has an empty name."""
    return {
        f"{what}_{kind}".rstrip("_"): less(statistics.median(getattr(each, what) for each in those), unit)
        for kind, those in runs.items()
        for what, unit in (("seconds", "s"), ("processor", "s of processor"))
    }


def _without_java(folder: Path) -> dict[str, str]:
    """An environment in which the machine's Java does not work."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    return {**os.environ, "JAVA_HOME": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}
