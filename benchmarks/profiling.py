"""Flame graphs of measured workers by py-spy, with `./dev bench --profile`. py-spy must be on the path.

The environment says what to profile: `BENCH_PROFILE` (`main` or `child`) and `BENCH_PROFILE_INTO` (an SVG file).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.processor import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["INSTALL", "is_installed", "profiled"]

INSTALL = "py-spy is not on the path: install it with `pipx install py-spy`, or put any py-spy there"


def is_installed() -> bool:
    return shutil.which("py-spy") is not None


@contextmanager
def profiled(pid: int) -> Iterator[None]:
    """Record this main process of a worker, or its first child, until the block ends, if the environment asks for it."""
    which = os.environ.get("BENCH_PROFILE")
    if not which:
        yield
        return
    target = pid if which == "main" else children_of(pid)[0]
    command = ["py-spy", "record", "--rate", "200", "--threads", "--output", os.environ["BENCH_PROFILE_INTO"], "--pid", str(target)]
    recording = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        recording.send_signal(signal.SIGINT)  # then it writes the graph
        recording.wait(120)
