"""The reconciliation: the time of the books, compared with the minimum work of any such job over the same files.

The minimum work is one `groupBy(task_id)` with a count and the latest time. Both run in turns in one Spark session over the same
Parquet files (`book_data.py`), after runs over fewer events that are not timed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from benchmarks.book_data import ordinary
from benchmarks.figures import less, more
from benchmarks.spark_side import Cost
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.schema import EVENTS
from redelivery.workers.reconciliation.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from benchmarks.figures import Figure

__all__ = ["GIB", "PHASES", "Timed", "books_of", "reconciliation", "seconds", "warmed"]

GIB = 2**30
#: The runs before the timed ones: their maximum number of events, and their number.
WARM, WARM_RUNS = 1_000_000, 6
#: The first word of the message that begins a phase, and the name of the phase.
PHASES = {"reading": "sorting_and_folding", "judging": "judging", "writing": "writing"}


def reconciliation(name: str, *, events: int, rounds: int = 7, tenth: bool = False) -> dict[str, Figure]:  # noqa: ARG001 - there is one side
    """The best times of both, and `speed_kept`: the speed relative to the minimum work.

    Figures for the size of a cluster are per event: processor, bytes read, and bytes shuffled. With `tenth`, each round also has
    the books of a tenth of the events; `times_a_tenth` is the time of all books relative to these, where 10.0 is linear.
    """
    with tempfile.TemporaryDirectory(prefix="redelivery-bench-") as folder, session(input_bytes=GIB) as spark:
        place, output = ordinary(spark, events), str(Path(folder) / "output")
        warmed(spark, events, output)
        bare, ours, costs, tenths = [], [], [], []
        for _ in range(rounds):
            bare.append(seconds(lambda: _bare(spark, place)))
            before = Cost.now(spark)
            ours.append(Timed.run(spark, books_of(place, output)))
            costs.append((before, Cost.now(spark)))
            if tenth:
                tenths.append(Timed.run(spark, books_of(ordinary(spark, events // 10), output)).seconds)
        best = min(ours, key=lambda each: each.seconds)
        count = spark.read.parquet(str(place / "outcomes")).count()
        size = sum(each.stat().st_size for each in (place / "outcomes").rglob("*.parquet"))
        return {
            "speed_kept": more(min(bare) / best.seconds, "of the bare speed"),
            **({"times_a_tenth": less(best.seconds / min(tenths), "times")} if tenth else {}),
            "events_per_second": more(count / best.seconds, "events/s"),
            "bare": less(min(bare), "s"),
            "reconcile": less(best.seconds, "s"),
            **{name: less(took, "s") for name, took in best.phases.items()},
            "peak_memory": less(Cost.now(spark).peak / GIB, "GiB"),
            "processor": less(sum(b.processor - a.processor for a, b in costs) / rounds / count * 1e6, "µs/event"),
            "read": less(size / count, "bytes/event"),
            "shuffled": less(sum(b.shuffled - a.shuffled for a, b in costs) / rounds / count, "bytes/event"),
        }


class Timed:
    """A run of the books: its `seconds`, and the seconds of its `phases`. Prints the messages of the run."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._marks: list[tuple[str, float]] = []
        self.seconds = 0.0

    @classmethod
    def run(cls, spark: SparkSession, books: Books) -> Timed:
        """Reconcile, and measure."""
        timed = cls()
        reconcile(spark, books, timed._say)
        timed.seconds = time.perf_counter() - timed._began
        return timed

    @property
    def phases(self) -> dict[str, float]:
        ends = [at for _, at in self._marks[1:]] + [self.seconds]
        return {name: end - at for (name, at), end in zip(self._marks, ends, strict=True)}

    def _say(self, text: str) -> None:
        at = time.perf_counter() - self._began
        sys.stderr.write(f"{at:7.2f} s  {text}\n")
        phase = PHASES.get(text.split(maxsplit=1)[0])
        if phase is not None and phase not in dict(self._marks):
            self._marks.append((phase, at))


def warmed(spark: SparkSession, events: int, output: str) -> None:
    """Let Java compile the code that the timed runs use."""
    place = ordinary(spark, min(events // 10, WARM))
    for _ in range(WARM_RUNS):
        _bare(spark, place)
        reconcile(spark, books_of(place, output))


def books_of(place: Path, output: str, **options: Any) -> Books:
    """The books of a folder with events and an inventory."""
    return Books(outcomes=str(place / "outcomes"), inventory=str(place / "inventory"), output=output, **options)


def seconds(work: Callable[[], object]) -> float:
    """The seconds that a function takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _bare(spark: SparkSession, place: Path) -> None:
    events = spark.read.schema(EVENTS).parquet(str(place / "outcomes"))
    events.groupBy("task_id").agg(F.count("*"), F.max("at_ms")).write.format("noop").mode("overwrite").save()
