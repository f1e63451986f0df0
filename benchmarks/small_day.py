"""A small day: what `redelivery reconcile` costs from the shell, its Java included, with and without kept classes.

`./dev python -m benchmarks.small_day --runs 5` runs the command over 10,000 events, turn about, and prints seconds of processor and
of time. Seconds of processor say most on a machine that others use. Java ends after the command: the time is the command's, the
processor that of all it started. `--embedded` takes PyPI's Java.
"""

from __future__ import annotations

import argparse
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

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Run", "run"]

#: Of Linux' prctl: what a child leaves behind when it ends becomes a child of this process.
_SUBREAPER = 36
#: Writes the events, where they are not there yet, and prints their folder.
_PREPARE = """
import sys
from benchmarks.book_data import ordinary
from redelivery.workers.reconciliation.spark.session import session
with session(input_bytes=0) as spark:
    print(ordinary(spark, int(sys.argv[1])), end="")
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds until the command ended, and seconds of processor of all that it had started."""

    seconds: float
    processor: float


def run(words: list[str], environment: Mapping[str, str]) -> Run:
    """Run a command, and wait until all that it started has ended. Raises `RuntimeError` where the command fails."""
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


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--embedded", action="store_true")
    given = parser.parse_args()
    # In a process of its own: a Java that goes on would be waited for.
    prepare = [sys.executable, "-c", _PREPARE, str(given.events)]
    place = subprocess.run(prepare, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="redelivery-small-day-") as name:
        folder = Path(name)
        environment = _without_java(folder) if given.embedded else dict(os.environ)
        # A cache that is no folder keeps nothing.
        caches = {"without": os.devnull, "with": str(folder / "cache")}
        sides = {side: environment | {"XDG_CACHE_HOME": cache} for side, cache in caches.items()}
        words = [str(Path(sys.executable).parent / "redelivery"), "reconcile", "--quiet", "--json"]
        words += ["--outcomes", f"{place}/outcomes", "--inventory", f"{place}/inventory", "--output", f"{folder}/books"]
        _print("first, which notes and keeps the classes", [run(words, sides["with"])])
        runs: dict[str, list[Run]] = {side: [] for side in sides}
        for _ in range(given.runs):
            for side, environment in sides.items():
                runs[side].append(run(words, environment))
        for side, those in runs.items():
            _print(f"{side} kept classes", those)
    return 0


def _without_java(folder: Path) -> dict[str, str]:
    """An environment in which the machine's Java does not work."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    return {**os.environ, "JAVA_HOME": "", "PATH": f"{program.parent}:{os.environ['PATH']}"}


def _print(what: str, runs: list[Run]) -> None:
    for name, unit in (("seconds", "s"), ("processor", "s of processor")):
        values = [getattr(each, name) for each in runs]
        sys.stderr.write(f"{what}: median {statistics.median(values):.1f} {unit} ({min(values):.1f} to {max(values):.1f})\n")


if __name__ == "__main__":
    sys.exit(main())
