"""A flame graph of a worker while it is measured, by py-spy, if that is asked for (`./dev bench --profile`).

The environment says what to profile: `BENCH_PROFILE` (`main` or `child`) and `BENCH_PROFILE_INTO` (an SVG file). py-spy is no
dependency.
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
    """Whether there is a py-spy."""
    return shutil.which("py-spy") is not None


@contextmanager
def profiled(pid: int) -> Iterator[None]:
    """Record the worker whose main process this is, or its first child, until the block ends; nothing if it is not asked for."""
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
        recording.send_signal(signal.SIGINT)  # it writes the graph then
        recording.wait(120)
