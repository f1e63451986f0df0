"""Runs the comparisons, both sides turn about, and prints medians and the spread of the paired ratios."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from typing import TYPE_CHECKING, Any

from benchmarks import delays, throughput

if TYPE_CHECKING:
    from collections.abc import Callable

SIDES = ("plain", "redelivery")


def comparisons(scale: float) -> dict[str, Callable[[str], dict[str, Any]]]:
    """Every comparison by name: a function of the side."""
    count = max(int(4000 * scale), 200)
    return {
        "ordinary, prefork": lambda name: throughput.ordinary(name, tasks=count, pool="prefork"),
        "ordinary, threads": lambda name: throughput.ordinary(name, tasks=count, pool="threads"),
        "ordinary, 10 kB": lambda name: throughput.ordinary(name, tasks=count // 2, pool="prefork", argument="x" * 10_000),
        "failing, 5 attempts": lambda name: throughput.failing(name, tasks=max(int(400 * scale), 50)),
        "lateness, 250/s": lambda name: delays.lateness(name, tasks=max(int(1500 * scale), 250), per_second=250),
        "memory of waiting": lambda name: delays.memory(name, tasks=max(int(10_000 * scale), 2000)),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is measured (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much work, against the standard amount (1.0)")
    parser.add_argument("--only", default="", help="only comparisons whose name contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    report: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(), "rounds": given.rounds}
    for title, measure in comparisons(given.scale).items():
        if given.only not in title:
            continue
        rounds = [{name: measure(name) for name in SIDES} for _ in range(given.rounds)]
        report[title] = summary = _summary(rounds)
        if not given.json:
            sys.stdout.write(f"{title}\n")
            for figure, row in summary.items():
                spread = (
                    f"  ratio {row['ratio']:6.2f}  ({row['lowest']:.2f}-{row['highest']:.2f})" if row["ratio"] is not None else ""
                )
                sys.stdout.write(f"  {figure:20} plain {row['plain']:10.1f}   redelivery {row['redelivery']:10.1f}{spread}\n")
            sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0


def _summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    summary: dict[str, dict[str, Any]] = {}
    for figure in rounds[0]["plain"]:
        pairs = [(each["plain"][figure], each["redelivery"][figure]) for each in rounds]
        ratios = [ours / plain for plain, ours in pairs if plain > 0 and ours > 0]
        summary[figure] = {
            "plain": statistics.median(plain for plain, _ in pairs),
            "redelivery": statistics.median(ours for _, ours in pairs),
            "ratio": statistics.median(ratios) if ratios else None,
            "lowest": min(ratios, default=None),
            "highest": max(ratios, default=None),
        }
    return summary


if __name__ == "__main__":
    sys.exit(main())
