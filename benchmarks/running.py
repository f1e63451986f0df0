"""Runs a comparison: its sides turn about, round after round, each measurement in a process and on a broker of its own.

Who begins changes from round to round, so that no side always runs on what another has warmed up or worn out.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.machine import load, machine, versions, wait_for_calm
from benchmarks.results import Result
from benchmarks.sides import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.comparisons import Comparison

__all__ = ["MeasurementError", "Plan", "measured", "profile"]


class MeasurementError(RuntimeError):
    """A measurement failed: its process says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to run comparisons. `sides` leaves out all others; `calm` is the load below which a comparison begins."""

    rounds: int = 3
    scale: float = 1.0
    sides: tuple[str, ...] = ()
    calm: float | None = None

    def of(self, comparison: Comparison) -> tuple[str, ...]:
        """The sides of a comparison that are to run."""
        return tuple(each for each in comparison.sides if not self.sides or each in self.sides)


def measured(comparison: Comparison, plan: Plan, say: Callable[[str], None]) -> Result:
    """Run a comparison. Raises `MeasurementError` where one of its measurements fails."""
    calm = None if plan.calm is None else wait_for_calm(plan.calm, say)
    before, sides = load(), plan.of(comparison)
    pairs = []
    for number in range(plan.rounds):
        turn = number % max(len(sides), 1)
        pair = {}
        for side in (*sides[turn:], *sides[:turn]):
            say(f"{comparison.name}: round {number + 1} of {plan.rounds}, {side}")
            pair[side] = _measurement(comparison.name, side, plan.scale, {})
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
    """Run each side once with its worker's `main` process or first `child` recorded: the flame graphs. No figure is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs = []
    for side in plan.of(comparison):
        say(f"{comparison.name}: profile of the {which} process, {side}")
        graph = folder / f"{comparison.name}-{side}-{which}.svg"
        _measurement(comparison.name, side, plan.scale, {"BENCH_PROFILE": which, "BENCH_PROFILE_INTO": str(graph)})
        if graph.exists():
            graphs.append(graph)
    return graphs


def _measurement(name: str, side: str, scale: float, environment: Mapping[str, str]) -> dict[str, Figure]:
    with tempfile.TemporaryDirectory(prefix="rb-") as folder:
        into = Path(folder) / "figures.json"
        words = ["-m", "benchmarks.measure", name, side, "--scale", str(scale), "--into", str(into)]
        said = Path(folder) / "said"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            code = process.wait()
        finally:
            process.terminate()  # interrupted: it ends its worker and its broker, and then itself
            process.wait()
        if code:
            msg = f"{name}, {side}: {said.read_text(errors='replace')[-3000:].strip()}"
            raise MeasurementError(msg)
        return {figure: Figure.of(row) for figure, row in json.loads(into.read_text()).items()}
