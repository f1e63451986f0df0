"""Runs a comparison: its sides in turns, round after round, each measurement with its own process and broker.

Each round begins with another side, so no side always runs after the same one. If milliseconds are compared, the sides run in
parallel, and take turns message by message.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.machine import load, machine, versions, wait_for_calm
from benchmarks.results import Result
from benchmarks.side import LOOK, ROOT
from benchmarks.turns import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.comparisons import Comparison

__all__ = ["MeasurementError", "Plan", "measured", "profile"]


class MeasurementError(RuntimeError):
    """A measurement failed. The message has the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to run comparisons: only these `sides` (default: all), and only below the load `calm`."""

    rounds: int = 3
    scale: float = 1.0
    sides: tuple[str, ...] = ()
    calm: float | None = None

    def of(self, comparison: Comparison) -> tuple[str, ...]:
        """The sides of a comparison to run."""
        return tuple(each for each in comparison.sides if not self.sides or each in self.sides)


def measured(comparison: Comparison, plan: Plan, say: Callable[[str], None]) -> Result:
    """Run a comparison. Raises `MeasurementError` if a measurement fails."""
    calm = None if plan.calm is None else wait_for_calm(plan.calm, say)
    before, sides = load(), plan.of(comparison)
    pairs = []
    for number in range(plan.rounds):
        turn = number % max(len(sides), 1)
        order = (*sides[turn:], *sides[:turn])
        pair: dict[str, dict[str, Figure]] = {}
        for parallel in [order] if comparison.beside else [(side,) for side in order]:
            say(f"{comparison.name}: round {number + 1} of {plan.rounds}, {' and '.join(parallel)}")
            pair |= _measurements(comparison.name, parallel, plan.scale, {})
        pairs.append({side: pair[side] for side in sides})
    return Result(
        name=comparison.name,
        title=comparison.title,
        sides=sides,
        rounds=plan.rounds,
        scale=plan.scale,
        amounts=comparison.scaled(plan.scale),
        day=dt.datetime.now(dt.UTC).date().isoformat(),
        machine=machine(),
        versions=versions(comparison.broker),
        load={"before": round(before, 2), "after": round(load(), 2), "asked": plan.calm, "calm": calm},
        pairs=tuple(pairs),
    )


def profile(comparison: Comparison, plan: Plan, which: str, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Run each side once, and record its worker's `main` process or first `child`. Returns the flame graphs."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs = []
    for side in plan.of(comparison):
        say(f"{comparison.name}: profile of the {which} process, {side}")
        graph = folder / f"{comparison.name}-{side}-{which}.svg"
        _measurements(comparison.name, (side,), plan.scale, {"BENCH_PROFILE": which, "BENCH_PROFILE_INTO": str(graph)})
        if graph.exists():
            graphs.append(graph)
    return graphs


def _measurements(name: str, sides: tuple[str, ...], scale: float, environment: Mapping[str, str]) -> dict[str, dict[str, Figure]]:
    """Measure these sides in parallel. The first failure ends all."""
    with tempfile.TemporaryDirectory(prefix="rb-") as made, ExitStack() as ends:
        folder = Path(made)
        shared = {**environment, **turns(folder, sides)}
        running = {side: ends.enter_context(_process(name, side, scale, folder, shared)) for side in sides}
        while codes := {side: process.poll() for side, process in running.items()}:
            failed = [side for side, code in codes.items() if code]
            if failed:
                msg = f"{name}, {failed[0]}: {(folder / failed[0]).read_text(errors='replace')[-3000:].strip()}"
                raise MeasurementError(msg)
            if all(code == 0 for code in codes.values()):
                break
            time.sleep(LOOK)
        return {side: _figures(folder / f"{side}.json") for side in sides}


@contextmanager
def _process(name: str, side: str, scale: float, folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process that measures this side. At SIGTERM it stops its worker and its broker, and ends."""
    words = ["-m", "benchmarks.measure", name, side, "--scale", str(scale), "--into", str(folder / f"{side}.json")]
    with (folder / side).open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env={**os.environ, **environment}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _figures(path: Path) -> dict[str, Figure]:
    return {figure: Figure.of(row) for figure, row in json.loads(path.read_text()).items()}
