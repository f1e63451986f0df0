"""A day's books with a state, in which one life in a hundred was carried over, against those of the same events without a state.

The day before left the publications of those lives, and its run left a state. The day's run reads the day; the run that it is
compared with has no state, and reads the same events and those publications. Both run in one Spark session, each once before it is
timed; a run with a state that is repeated does all of its work anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from benchmarks.figures import less
from benchmarks.reconciliation import EVENTS_PER_LIFE, GIB, NOON, events_of, inventory_of, seconds, write
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.figures import Figure

__all__ = ["carrying"]

DAY_MS = 86_400_000


def carrying(name: str, *, events: int, rounds: int = 3) -> dict[str, Figure]:  # noqa: ARG001 - there is one side
    """Seconds of both, the best of `rounds`, and `times_stateless`: how much longer the run with a state takes, 1.0 being equal."""
    with tempfile.TemporaryDirectory(prefix="redelivery-bench-") as folder, session(input_bytes=GIB) as spark:
        with_state, without = _written(spark, Path(folder), round(events / EVENTS_PER_LIFE))
        for books in (with_state, without):
            reconcile(spark, books)
        ours = min(seconds(lambda: reconcile(spark, with_state)) for _ in range(rounds))
        stateless = min(seconds(lambda: reconcile(spark, without)) for _ in range(rounds))
        return {
            "times_stateless": less(ours / stateless, "times"),
            "with_state": less(ours, "s"),
            "without_state": less(stateless, "s"),
        }


def _written(spark: SparkSession, folder: Path, lives: int) -> tuple[Books, Books]:
    """Two days, the first of them reconciled; what is to be compared."""
    told = events_of(spark, lives, carried_ms=DAY_MS)
    before, day, whole = (str(folder / name) for name in ("outcomes/date=2026-01-30", "outcomes/date=2026-01-31", "whole"))
    write(told.where(F.col("at_ms") < NOON), before)
    write(told.where(F.col("at_ms") >= NOON), day)
    write(told, whole)
    held, later = str(folder / "held"), str(folder / "inventory")
    write(inventory_of(spark, lives, before=True), held)
    write(inventory_of(spark, lives), later)
    state, output = str(folder / "state"), str(folder / "books")
    reconcile(spark, Books(outcomes=before, inventory=held, state=state, output=output))
    with_state = Books(outcomes=day, inventory=later, state=state, output=output)
    return with_state, Books(outcomes=whole, inventory=later, output=str(folder / "others"))
