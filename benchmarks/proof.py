"""The proof of the prover: planted faults, judged by the job, and compared with the truth, verdict by verdict.

`./dev python -m benchmarks.proof --tasks 1000000` writes histories, reconciles them, and prints the recall and the precision of
each verdict. Exit code 0 where all are 1.0, else 1.
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

from benchmarks.history_files import Untidy, write_histories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Score", "prove", "scores"]


@dataclass(frozen=True, slots=True)
class Score:
    """One verdict: how many lives truly have it, how many were given it, and how many of those rightly."""

    truly: int
    given: int
    rightly: int

    @property
    def recall(self) -> float:
        """Which share of those that have it were found."""
        return self.rightly / self.truly if self.truly else 1.0

    @property
    def precision(self) -> float:
        """Which share of those that were found have it."""
        return self.rightly / self.given if self.given else 1.0


def scores(folder: Path) -> dict[str, Score]:
    """The score of each verdict that there is, in the truth or in the books below this folder (written with all lives)."""
    columns = ["task_id", "generation", "verdict"]
    truth = _by_life(parquet.read_table(folder / "truth.parquet", columns=columns))
    given = _by_life(dataset.dataset(folder / "books" / "verdicts").to_table(columns=columns))
    rightly = Counter(verdict for life, verdict in given.items() if truth.get(life) == verdict)
    truly, said = Counter(truth.values()), Counter(given.values())
    return {name: Score(truly[name], said[name], rightly[name]) for name in sorted(truly | said)}


def _by_life(table: object) -> dict[tuple[str, int], str]:
    named = {name: table.column(name).to_pylist() for name in ("task_id", "generation", "verdict")}  # type: ignore[attr-defined]  # pyarrow has no types
    lives = zip(named["task_id"], (each or 0 for each in named["generation"]), strict=True)
    return dict(zip(lives, named["verdict"], strict=True))


def prove(
    spark: SparkSession, folder: Path, *, tasks: int, rates: float = 0.002, untidy: Untidy | None = None, seed: int = 1
) -> dict[str, Score]:
    """Write histories below the folder, reconcile them, and score the books."""
    from redelivery.workers.reconciliation.job import Books, reconcile  # noqa: PLC0415 - the histories know nothing of it

    write_histories(folder, tasks=tasks, rates=rates, untidy=untidy, seed=seed)
    outcomes, inventory, output = (str(folder / name) for name in ("outcomes", "inventory", "books"))
    reconcile(spark, Books(outcomes=outcomes, inventory=inventory, output=output, all_lives=True))
    return scores(folder)


def main() -> int:
    """Prove, and print the scores."""
    from redelivery.workers.reconciliation.session import session  # noqa: PLC0415 - as above

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="redelivery-proof-") as folder, session() as spark:
        began = time.perf_counter()
        found = prove(spark, Path(folder), tasks=given.tasks, seed=given.seed)
        print(f"{given.tasks:,} tasks, {time.perf_counter() - began:.0f} s")
    for name, score in found.items():
        print(f"{name:<20} {score.truly:>10,}  recall {score.recall:.6f}  precision {score.precision:.6f}")
    return 0 if all(score.recall == score.precision == 1.0 for score in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
