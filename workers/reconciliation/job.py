"""The reconciliation: do the books balance, and if not, which task does not, and why.

1. Outcome events and the inventory are read (`reading.py`).
2. They are folded into lives (`lives.py`), in one shuffle; the lives are kept, and everything else comes from them.
3. Each life is judged (`verdicts.py`).
4. Verdicts, metrics, possible repeats and the summary are written, all of them or none (`writing.py`).

Enters: URIs that Spark can read, a grace, and optionally the moment that ages are counted up to; without it that moment is the
latest one in the inputs (when the inventory was taken among them), so that the same inputs give the same books whenever they are
read. Leaves: the outputs and a `Summary`. Refuses, with `InputError`: inputs that are missing, empty, broken or of another shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.errors import InputError
from redelivery.workers.reconciliation.files import Files
from redelivery.workers.reconciliation.lives import fold, with_queues_named
from redelivery.workers.reconciliation.metrics import metrics_of
from redelivery.workers.reconciliation.reading import read_events, read_gaps, read_inventory, read_taken
from redelivery.workers.reconciliation.summary import Summary, summarise
from redelivery.workers.reconciliation.verdicts import judge
from redelivery.workers.reconciliation.writing import check_output, replacing, write_summary, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Books", "reconcile"]

_EVIDENCE = ("task_id", "generation", "task", "queue", "verdict", "rule", "cause", "first_ms", "last_ms", "events", "nesting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What to reconcile: URIs, the grace in ms, `as_of_ms` (ms since the epoch), and whether balanced lives are written too."""

    outcomes: str
    inventory: str
    output: str
    grace_ms: int = 600_000
    as_of_ms: int | None = None
    all_lives: bool = False


def reconcile(spark: SparkSession, books: Books, say: Callable[[str], object] = lambda _: None) -> Summary:
    """Reconcile, and write the outputs; `say` is told how far it is. Raises `InputError`, and whatever Spark raises."""
    files = Files(spark)
    output = check_output(files, books.output, {"outcomes": books.outcomes, "inventory": books.inventory})
    gaps, taken_ms = read_gaps(files, books.outcomes), read_taken(files, books.inventory)
    events, inventory = read_events(spark, files, books.outcomes), read_inventory(spark, files, books.inventory)
    say("reading and folding the events")
    lives = fold(events, inventory).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        facts = _look(lives, books)
        named = with_queues_named(lives) if facts["unnamed"] else lives
        as_of_ms = books.as_of_ms if books.as_of_ms is not None else max(int(facts["latest_ms"]), taken_ms or 0)
        say(f"judging {facts['lives']:,} lives")
        looked_ms = facts["looked_ms"] if taken_ms is None else taken_ms
        judged = judge(named, as_of_ms=as_of_ms, grace_ms=books.grace_ms, looked_ms=looked_ms)
        summary = summarise(judged, gaps, as_of_ms=as_of_ms, grace_ms=books.grace_ms)
        with replacing(files, output) as folder:
            say(f"writing {books.output}")
            _write(judged, folder, all_lives=books.all_lives)
            write_summary(files, summary, folder)
    finally:
        lives.unpersist()
    return summary


def _look(lives: DataFrame, books: Books) -> dict[str, Any]:
    """One look over all lives, which fills the cache: what decides how to go on, and whether the rows can be used at all."""
    row = lives.agg(
        F.count("*").alias("lives"),
        F.sum("events").alias("events"),
        F.greatest(F.max("last_ms"), F.max("seen_ms")).alias("latest_ms"),
        F.max("seen_ms").alias("looked_ms"),
        F.count_if(F.col("queue") == "").alias("unnamed"),
        F.sum("unknown").alias("unknown"),
        F.sum("broken").alias("broken"),
        F.sum("misplaced").alias("misplaced"),
    ).first()
    facts: dict[str, Any] = {} if row is None else row.asDict()
    if facts.get("broken"):
        msg = f"{books.outcomes}: {facts['broken']} rows have no task_id, event_id or at_ms: these are no outcome events"
    elif facts.get("unknown"):
        msg = (
            f"{books.outcomes}: {facts['unknown']} rows have an outcome of none of our words: a newer version may have written them"
        )
    elif facts.get("misplaced"):
        msg = f"{books.inventory}: {facts['misplaced']} rows have no task_id, seen_ms or known place: this is no inventory"
    elif not facts.get("events"):
        msg = f"{books.outcomes} holds no outcome events: export them first, or look at the path"
    else:
        return facts
    raise InputError(msg)


def _write(judged: DataFrame, folder: str, *, all_lives: bool) -> None:
    evidence = judged.select(*_EVIDENCE)
    write_table(evidence if all_lives else evidence.where(F.col("verdict") != "balanced"), folder, "verdicts")
    repeats = judged.where("is_repeated").select("task_id", "generation", "task", "queue", "verdict", "cause", "nesting")
    write_table(repeats, folder, "repeats")
    write_table(metrics_of(judged), folder, "metrics")
