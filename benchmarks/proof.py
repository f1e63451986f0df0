"""The proof of the reconciliation: it judges histories with planted faults, and its verdicts are compared with the truth.

`./dev python -m benchmarks.proof --tasks 1000000` writes histories, reconciles them, and prints the recall and precision of each
verdict; with `--state` in two runs, like daily books. Exit code 0: all are 1.0; 1: some are not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import dataset, parquet

from benchmarks.histories import NOON_MS
from benchmarks.history_files import Untidy, write_histories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["Score", "prove", "prove_by_day", "scores"]

COLUMNS = ["task_id", "generation", "verdict"]
#: Verdicts of lives that have not ended.
OPEN = ("in_flight", "stuck")


@dataclass(frozen=True, slots=True)
class Score:
    """The numbers of lives that truly have a verdict, that got it from the books, and that got it rightly."""

    truly: int
    given: int
    rightly: int

    @property
    def recall(self) -> float:
        """The share of the true lives that the books found."""
        return self.rightly / self.truly if self.truly else 1.0

    @property
    def precision(self) -> float:
        """The share of the found lives that are true."""
        return self.rightly / self.given if self.given else 1.0


Life = tuple[str, int]


def scores(folder: Path) -> dict[str, Score]:
    """The score of each verdict in the truth or in the books (with all lives) below this folder."""
    return _scored(_truth(folder), _said(folder))


def _scored(truth: dict[Life, str], given: dict[Life, str]) -> dict[str, Score]:
    rightly = Counter(verdict for life, verdict in given.items() if truth.get(life) == verdict)
    truly, said = Counter(truth.values()), Counter(given.values())
    return {name: Score(truly[name], said[name], rightly[name]) for name in sorted(truly | said)}


def _truth(folder: Path) -> dict[Life, str]:
    return _by_life(parquet.read_table(folder / "truth.parquet", columns=COLUMNS))


def _said(folder: Path) -> dict[Life, str]:
    return _by_life(dataset.dataset(folder / "books" / "verdicts").to_table(columns=COLUMNS))


def _by_life(table: object) -> dict[Life, str]:
    named = {name: table.column(name).to_pylist() for name in COLUMNS}  # type: ignore[attr-defined]  # pyarrow has no types
    lives = zip(named["task_id"], (each or 0 for each in named["generation"]), strict=True)
    return dict(zip(lives, named["verdict"], strict=True))


def prove(
    spark: SparkSession,
    folder: Path,
    *,
    tasks: int,
    rates: float = 0.002,
    untidy: Untidy | None = None,
    seed: int = 1,
    all_lives: bool = True,
) -> dict[str, Score]:
    """Write histories, reconcile them, and score the books. Without `all_lives`, plain lives are sorted out."""
    from redelivery.workers.reconciliation.job import Books, reconcile  # noqa: PLC0415 - the histories do not use it

    write_histories(folder, tasks=tasks, rates=rates, untidy=untidy, seed=seed)
    outcomes, inventory, output = (str(folder / name) for name in ("outcomes", "inventory", "books"))
    reconcile(spark, Books(outcomes=outcomes, inventory=inventory, output=output, all_lives=all_lives))
    truth = _truth(folder)
    return _scored(truth, (({} if all_lives else dict.fromkeys(truth, "balanced")) | _said(folder)))


def prove_by_day(
    spark: SparkSession, folder: Path, *, tasks: int, rates: float = 0.002, untidy: Untidy | None = None, seed: int = 1
) -> tuple[dict[str, Score], list[Summary]]:
    """Write histories, reconcile them in two runs with a state (the first at noon), and score the verdicts of both together.

    Some events come late, and the second run corrects settled lives.
    """
    from redelivery.workers.reconciliation.job import Books, reconcile  # noqa: PLC0415 - as above

    write_histories(folder, tasks=tasks, rates=rates, untidy=untidy, seed=seed, parted_ms=NOON_MS)
    truth = _truth(folder)
    said, summaries = dict.fromkeys(truth, "balanced"), []
    output, state = str(folder / "books"), str(folder / "state")
    for outcomes, inventory in (("outcomes/date=2026-01-31", "before"), ("outcomes", "inventory")):
        # Each run reports open lives again. A settled verdict is valid until it is corrected.
        said = {life: "balanced" if verdict in OPEN else verdict for life, verdict in said.items()}
        books = Books(outcomes=str(folder / outcomes), inventory=str(folder / inventory), state=state, output=output)
        summaries.append(reconcile(spark, books))
        said |= _said(folder)
    return _scored(truth, said), summaries


def main() -> int:
    from redelivery.workers.reconciliation.spark.session import session  # noqa: PLC0415 - as above

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="do not sort plain lives out")
    parser.add_argument("--state", action="store_true", help="in two runs with a state")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redelivery-proof-") as folder, session() as spark:
        began = time.perf_counter()
        options = {"tasks": given.tasks, "seed": given.seed}
        if given.state:
            found, _ = prove_by_day(spark, Path(folder), **options)
        else:
            found = prove(spark, Path(folder), **options, all_lives=given.all)
        print(f"{given.tasks:,} tasks, {time.perf_counter() - began:.0f} s")
    for name, score in found.items():
        print(f"{name:<20} {score.truly:>10,}  recall {score.recall:.6f}  precision {score.precision:.6f}")
    return 0 if all(score.recall == score.precision == 1.0 for score in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
