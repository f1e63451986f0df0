"""Runs comparisons, with their sides in turns, and prints medians and the spread of the paired ratios.

The results go to `results/<name>.json`, the plots to `plots/`, and the table into `README.md`, all in the output folder (by default
this one). Exit codes: 0 measured, 1 a measurement failed (the others still run), 2 usage.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.comparisons import BROKERS, COMPARISONS, Comparison, chosen
from benchmarks.plots import write_plots
from benchmarks.profiling import INSTALL, is_installed
from benchmarks.results import Result, read_all
from benchmarks.running import MeasurementError, Plan, measured, profile
from benchmarks.side import ROOT
from benchmarks.sides import NAMES
from benchmarks.table import fill, number

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def main(words: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the running measurement is ended, too
    parser = _parser()
    given = parser.parse_args(words)
    try:
        comparisons = chosen(given.names, given.broker or (None if given.names else BROKERS[0]))
    except ValueError as exc:
        parser.error(str(exc))
    plan = Plan(rounds=given.rounds, scale=given.scale, sides=tuple(given.side), calm=given.calm)
    if given.list:
        _list()
        return 0
    if given.profile:
        if not is_installed():
            parser.error(INSTALL)
        return _profile(comparisons, plan, given.profile)
    if given.redraw:
        _draw(given.output)
        return 0
    return _measure(comparisons, plan, given.output, is_json=given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="comparisons, or shell patterns of their names (all)")
    parser.add_argument("--list", action="store_true", help="list the comparisons")
    parser.add_argument("--broker", choices=BROKERS, help="only the comparisons on this broker (valkey, without names)")
    parser.add_argument("--rounds", type=_positive, default=3, help="how often each side is measured (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="the amount of work, relative to the standard (1.0)")
    parser.add_argument("--side", action="append", default=[], choices=list(NAMES), help="only this side; may be given again")
    parser.add_argument(
        "--calm", type=float, metavar="LOAD", help="begin each comparison when the load average of the last minute is below this"
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--output", type=Path, default=HERE, metavar="FOLDER", help="the folder for results, plots and table")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: make plots and table again from the results")
    parser.add_argument("--profile", choices=("main", "child"), help="flame graphs of the workers by py-spy; no result is kept")
    return parser


def _positive(word: str) -> int:
    value = int(word)
    if value < 1:
        msg = "must be 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return value


def _measure(comparisons: list[Comparison], plan: Plan, output: Path, *, is_json: bool) -> int:
    results, failed = [], 0
    for comparison in comparisons:
        if not plan.of(comparison):
            continue
        try:
            result = measured(comparison, plan, _say)
        except MeasurementError as exc:
            _say(f"failed: {exc}")
            failed = 1
            continue
        result.write(output / "results")
        results.append(result)
        if not is_json:
            _print(result)
    _draw(output)
    if is_json:
        sys.stdout.write(json.dumps({each.name: each.to_json() for each in results}, indent=1) + "\n")
    return failed


def _draw(output: Path) -> None:
    results = read_all(output / "results")
    write_plots(results, output / "plots")
    if (readme := output / "README.md").exists():
        fill(readme, results)


def _profile(comparisons: list[Comparison], plan: Plan, which: str) -> int:
    for comparison in comparisons:
        for graph in profile(comparison, plan, which, ROOT / ".cache" / "profiles", _say):
            sys.stdout.write(f"{graph.relative_to(ROOT)}\n")
    return 0


def _print(result: Result) -> None:
    sys.stdout.write(f"{result.name}: {result.title}\n")
    for row in result.rows:
        values = "  ".join(f"{side} {number(row.medians[side]):>9}" for side in result.sides if side in row.medians)
        ratio = "" if row.ratio is None else f"  ratio {row.ratio.median:.2f} ({row.ratio.lowest:.2f}-{row.ratio.highest:.2f})"
        sys.stdout.write(f"  {row.name:20} {row.unit:16} {values}{ratio}\n")
    sys.stdout.flush()


def _list() -> None:
    for each in COMPARISONS.values():
        amounts = ", ".join(f"{amount.standard:,} {name}" for name, amount in each.amounts.items())
        sys.stdout.write(f"{each.name:22} {each.title} ({amounts}; {', '.join(each.sides)})\n")


def _say(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
