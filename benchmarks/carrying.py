"""A day's books with a state, which carries over one life in a hundred, compared with the books of the same events without a state.

The run of the day before left a state with the publications of those lives. One in fifty of them is still open after the day. The
run with the state reads the day; the other run reads the day and those publications. Both run in turns in one Spark session, after
runs that are not timed. A repeated run with a state does all of its work again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from benchmarks.book_data import EVENTS_PER_LIFE, NOON, events_of, inventory_of, kept, write
from benchmarks.figures import less
from benchmarks.reconciliation import GIB, seconds
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.figures import Figure

__all__ = ["carrying"]

DAY_MS = 86_400_000
WARM_RUNS = 4


def carrying(name: str, *, events: int, rounds: int = 7) -> dict[str, Figure]:  # noqa: ARG001 - there is one side
    """The best times of both, and `times_stateless`: the time with a state, relative to the time without."""
    with tempfile.TemporaryDirectory(prefix="redelivery-bench-") as folder, session(input_bytes=GIB) as spark:
        with_state, without = _books(spark, _two_days(spark, events), Path(folder))
        for books in (with_state, without) * WARM_RUNS:
            reconcile(spark, books)
        ours, stateless = [], []
        for _ in range(rounds):
            ours.append(seconds(lambda: reconcile(spark, with_state)))
            stateless.append(seconds(lambda: reconcile(spark, without)))
        return {
            "times_stateless": less(min(ours) / min(stateless), "times"),
            "with_state": less(min(ours), "s"),
            "without_state": less(min(stateless), "s"),
        }


def _two_days(spark: SparkSession, events: int) -> Path:
    """Events by day (`outcomes`) and together (`whole`), and inventories between the days (`held`) and after them (`inventory`)."""
    lives = range(round(events / EVENTS_PER_LIFE))

    def written(folder: Path) -> None:
        both = events_of(spark, lives, carried_ms=DAY_MS)
        write(both.where(F.col("at_ms") < NOON), folder / "outcomes" / "date=2026-01-30")
        write(both.where(F.col("at_ms") >= NOON), folder / "outcomes" / "date=2026-01-31")
        write(both, folder / "whole")
        write(inventory_of(spark, lives, before=True), folder / "held")
        write(inventory_of(spark, lives, carried=True), folder / "inventory")

    return kept(f"open-days-{events}", written)


def _books(spark: SparkSession, place: Path, folder: Path) -> tuple[Books, Books]:
    """The two books to compare. Reconciles the first day."""
    before, day, whole = (str(place / name) for name in ("outcomes/date=2026-01-30", "outcomes/date=2026-01-31", "whole"))
    later, state, output = str(place / "inventory"), str(folder / "state"), str(folder / "books")
    reconcile(spark, Books(outcomes=before, inventory=str(place / "held"), state=state, output=output))
    with_state = Books(outcomes=day, inventory=later, state=state, output=output)
    return with_state, Books(outcomes=whole, inventory=later, output=str(folder / "others"))
