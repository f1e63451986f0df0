"""Compares the costs of an earlier commit and of this tree under the same load: `./dev python -m benchmarks.earlier COMMIT`.

It shows whether a disabled feature costs anything. The commit before the feature is extracted into a temporary folder, and both
trees run the same no-op tasks in turns. Each run has its own process and broker, and uses the libraries of this environment. The
last line is JSON with the figures of each pair, their ratios (now to then), and the medians of these. On a busy machine, the
processor times are more reliable than the rate.

    ./dev python -m benchmarks.earlier "$(git log --diff-filter=A --format=%H -- middleware/telemetry/spans.py)^" --rounds 5
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.side import ROOT

__all__ = ["measured", "taken_out"]

#: The program of one run. It prints the figures as JSON.
RUN = """
import json, sys
from benchmarks.throughput import ordinary
figures = ordinary("redelivery", tasks=int(sys.argv[1]), pool="prefork")
print(json.dumps({name: figure.value for name, figure in figures.items()}))
"""


def taken_out(commit: str, folder: Path) -> Path:
    """Extract the tree of a commit into the folder. Raises `CalledProcessError` if there is no such commit."""
    command = ["git", "archive", "--format=tar", commit]
    packed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def measured(tree: Path, tasks: int) -> dict[str, float]:
    """The rate of one worker, and its processor time for each task (µs), with the code of this tree."""
    command, environment = [sys.executable, "-c", RUN, str(tasks)], {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{tree}: {done.stderr.strip()[-3000:]}"
        raise RuntimeError(msg)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev python -m benchmarks.earlier")
    parser.add_argument("commit", help="the commit to compare with, as git names it")
    parser.add_argument("--rounds", type=int, default=5, help="how many pairs (5)")
    parser.add_argument("--tasks", type=int, default=6000, help="how many tasks (6000)")
    said = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="rb-") as folder:
        trees = {"then": taken_out(said.commit, Path(folder)), "now": ROOT}
        for number in range(said.rounds):
            order = ("now", "then") if number % 2 else ("then", "now")
            pairs.append({each: measured(trees[each], said.tasks) for each in order})
    report: dict[str, Any] = {"commit": said.commit, "tasks": said.tasks, "pairs": pairs}
    for name in pairs[0]["then"]:
        ratios = [round(pair["now"][name] / pair["then"][name], 3) for pair in pairs]
        report[name] = {"ratios": ratios, "median": round(statistics.median(ratios), 3)}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
