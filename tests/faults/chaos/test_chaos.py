"""One bounded chaos run: every boundary is hit with a message in hand, with faults of the network and the broker besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.chaos.plans.plan import Plan
from tests.faults.chaos.run.harness import Run
from tests.support.lanes import seed

if TYPE_CHECKING:
    from pathlib import Path

SEED = seed()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_a_kill_at_any_boundary_loses_nothing_and_the_books_balance(folder: Path) -> None:
    """A process dies at each step of a message; nothing is lost, ends twice, or runs twice without being named."""
    run = Run(folder, SEED, Plan(SEED, 1), workers=3, fault_every=6.0)
    run.open()
    try:
        run.go(seconds=900)
        run.settle(400)
        verdict = run.judge()
    finally:
        run.close()
    again = f"again with: ./dev chaos --seed {SEED}"
    assert not run.plan.missing, f"{run.plan.missing} were not hit; {again}"
    assert not verdict.faults, f"{verdict.faults[:10]}; {again}"
    assert verdict.lives > 100
    summary = run.reconcile()
    assert summary["balanced"], f"{summary}; {again}"
    assert summary["possible_repeats"] >= verdict.repeats
