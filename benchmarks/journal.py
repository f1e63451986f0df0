"""What the journal of moves costs on RabbitMQ: `./dev python -m benchmarks.journal --work noop --rounds 3`.

The same worker runs the same tasks with and without the journal, in turns, each on a fresh node. The product has no switch for the
journal, so the broker's user may not declare it. The last line is JSON with the figures of each pair, their ratios (with to without
the journal), and the medians of these. On a busy machine, the processor times are more reliable than the rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.side import ROOT
from benchmarks.throughput import failing, ordinary

__all__ = ["measured"]

#: The default number of tasks of each kind.
TASKS = {"noop": 6000, "failing": 1000}


def measured(work: str, tasks: int, queue_type: str, *, journal: bool) -> dict[str, float]:
    """The rate of one worker, and the processor time of worker and broker for each task or attempt (µs)."""
    broker: dict[str, Any] = {"broker": "rabbitmq", "queue_type": queue_type, "journal": "yes" if journal else "no"}
    if work == "noop":
        figures = ordinary("redelivery", tasks=tasks, pool="prefork", **broker)
    else:
        figures = failing("redelivery", tasks=tasks, **broker)
    processor = sum(figure.value for name, figure in figures.items() if name.endswith("_processor"))
    (rate,) = (figure.value for name, figure in figures.items() if name.endswith("_per_second"))
    return {"rate": round(rate), "processor": round(processor)}


def _apart(work: str, tasks: int, queue_type: str, journal: str) -> dict[str, float]:
    """Run `measured` in its own process, because an app has only one broker."""
    words = ["--work", work, "--tasks", str(tasks), "--queue", queue_type, "--once", journal]
    command = [sys.executable, "-m", "benchmarks.journal", *words]
    figures: dict[str, float] = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev python -m benchmarks.journal")
    parser.add_argument("--work", choices=list(TASKS), default="noop", help="tasks that do nothing, or that fail five times")
    parser.add_argument("--queue", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--rounds", type=int, default=3, help="how many pairs (3)")
    parser.add_argument("--tasks", type=int, help="how many tasks (6000 that do nothing, 1000 that fail)")
    parser.add_argument("--once", choices=["yes", "no"], help="measure only with the journal, or only without it")
    said = parser.parse_args()
    tasks = said.tasks or TASKS[said.work]
    if said.once is not None:
        sys.stdout.write(json.dumps(measured(said.work, tasks, said.queue, journal=said.once == "yes")) + "\n")
        return
    pairs = []
    for number in range(said.rounds):
        order = ("yes", "no") if number % 2 else ("no", "yes")
        pairs.append({journal: _apart(said.work, tasks, said.queue, journal) for journal in order})
    report: dict[str, Any] = {"work": said.work, "queue": said.queue, "tasks": tasks, "pairs": pairs}
    for name in ("rate", "processor"):
        ratios = [round(pair["yes"][name] / pair["no"][name], 3) for pair in pairs]
        report[name] = {"ratios": ratios, "median": round(statistics.median(ratios), 3)}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
