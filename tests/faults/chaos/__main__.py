"""`./dev chaos`: one run of any length. Exit 0 if nothing was lost, 1 if something was, 2 if it could not run."""

from __future__ import annotations

import argparse
import fnmatch
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.chaos.plans import page
from tests.faults.chaos.plans.plan import BOUNDARIES, Plan
from tests.faults.chaos.rabbit.account import NAMED, NEVER_SENT
from tests.faults.chaos.rabbit.harness import RabbitRun
from tests.faults.chaos.rabbit.plan import BOUNDARIES as RABBITMQ
from tests.faults.chaos.run.harness import Run

OF_BROKER = {"valkey": BOUNDARIES, "rabbitmq": RABBITMQ}
#: Seconds until all is quiet: a killed RabbitMQ passes on after three minutes what was between two delay levels.
RESTORED = 420.0


def main() -> int:
    """Run, judge, print."""
    options = _options()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    say = (lambda _: None) if options.json else _say
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as name:
        folder = Path(options.keep or name)
        folder.mkdir(parents=True, exist_ok=True)
        plan = Plan(seed, options.each, options.only, OF_BROKER[options.broker])
        common: dict[str, Any] = {"fault_every": options.fault_every, "workers": options.workers, "say": say}
        kind: type[Run | RabbitRun] = RabbitRun if options.broker == "rabbitmq" else Run
        run = kind(folder, seed, plan, **common)
        began = time.monotonic()
        run.open()
        try:
            run.go(seconds=options.minutes * 60, kills=options.kills)
            say("coming to rest")
            books = not options.no_books
            found = _found(run, books=books) if isinstance(run, Run) else _found_on_rabbitmq(run, books=books)
        finally:
            run.close()
    figures = {"broker": options.broker, "seed": seed, "seconds": round(time.monotonic() - began), **found}
    if options.page is not None:
        page.write(options.page, figures)
    print(json.dumps(figures) if options.json else _table(figures))  # noqa: T201 - what the command is for
    return 1 if figures["faults"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description="Kill, cut and fill, and look whether the books balance.")
    parser.add_argument("--broker", choices=tuple(OF_BROKER), default="valkey", help="on which broker (valkey)")
    parser.add_argument("--minutes", type=float, default=5.0, help="at most so long, before everything has to come to rest (5)")
    parser.add_argument("--kills", type=int, default=0, help="at least so many, where the time allows")
    parser.add_argument("--each", type=int, default=3, help="hit every boundary so often (3)")
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", help="only boundaries so named: 'worker:watch*'; may be given again"
    )
    parser.add_argument("--seed", type=int, help="of the plan and of the faults; a random one is printed")
    parser.add_argument("--workers", type=int, default=2, help="how many workers at a time (2)")
    parser.add_argument("--fault-every", type=float, default=5.0, help="seconds between two of the other faults, about (5)")
    parser.add_argument("--no-books", action="store_true", help="leave the reconciliation out, which needs Spark")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the logs, the notes and the exports there; its path must be short")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the figures into this page, between its two marks")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    if options.only is not None:
        names = [f"{role}:{each}" for role, its in OF_BROKER[options.broker].items() for each in its]
        unknown = [pattern for pattern in options.only if not fnmatch.filter(names, pattern)]
        if unknown:
            parser.error(f"no boundary is named {unknown[0]!r}; docs/chaos.md names them, as worker:receive.before")
        options.only = {name for pattern in options.only for name in fnmatch.filter(names, pattern)}
    return options


def _found(run: Run, *, books: bool) -> dict[str, Any]:
    faults = _settled(run, 120)
    verdict = run.judge()
    faults += verdict.faults
    summary = _reconciled(run, faults) if books else {}
    if summary and not summary["balanced"]:
        faults.append(f"the reconciliation does not balance: {summary['verdicts']}, gaps {summary['gaps']}")
    return {
        **_common(run, faults, summary),
        "lives": verdict.lives,
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "repeats": verdict.repeats,
        "unnamed_repeats": len(verdict.unnamed),
    }


def _found_on_rabbitmq(run: RabbitRun, *, books: bool) -> dict[str, Any]:
    faults = _settled(run, RESTORED)
    made = run.judge()
    summary = _reconciled(run, faults) if books else {}
    if summary:
        made.compare(run.books())
    faults += made.faults
    return {
        **_common(run, faults, summary),
        "lives": made.lives,
        "lost": sum(made.count(word) for word in ("lost", "missing_dead_letter")),
        "never_sent": made.count(NEVER_SENT),
        "named": {word: made.count(word) for word in NAMED},
        "repeats": made.repeats,
        "unnamed_repeats": sum("nothing names it" in fault for fault in made.faults),
        "letters_twice": made.twice,
    }


def _settled(run: Run | RabbitRun, seconds: float) -> list[str]:
    try:
        run.settle(seconds)
    except AssertionError as exc:
        return [str(exc)]
    return []


def _reconciled(run: Run | RabbitRun, faults: list[str]) -> dict[str, Any]:
    try:
        return run.reconcile()
    except AssertionError as exc:
        faults.append(f"the reconciliation failed: {str(exc)[:1000]}")
        return {}


def _common(run: Run | RabbitRun, faults: list[str], summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "kills": sum(run.kills.values()),
        "by_boundary": dict(sorted(run.kills.items())),
        "missing": run.plan.missing,
        "other_faults": dict(run.faults.done),
        "verdicts": summary.get("verdicts"),
        "faults": faults[:50],
    }


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201 - what the command is for


def _table(figures: dict[str, Any]) -> str:
    lines = [f"{'where':<32}{'kills':>7}"]
    lines += [f"{name:<32}{count:>7}" for name, count in figures["by_boundary"].items()]
    lines += [f"{'in all':<32}{figures['kills']:>7}", ""]
    lines += [
        f"{name.replace('_', ' ')}: {value}" for name, value in figures.items() if name not in {"by_boundary", "faults", "kills"}
    ]
    lines += ["", *(f"FAULT {fault}" for fault in figures["faults"])]
    if figures["faults"]:
        lines.append(f"again with: ./dev chaos --seed {figures['seed']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
