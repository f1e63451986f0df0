"""Evidence: why a life does not balance, what happened to it step by step, and what to do.

Enters: judged lives, and the events that they were folded from. Leaves: the rows of `verdicts/`: for a discrepancy, `cause` says
what is known and what it likely means, `advice` what to do, and `history` lists its events in order (by delivery and step, as they
were judged), the last `MOST` of them. Only lives with a discrepancy, or with a correction, have their events looked up; `redelivery
task show` lists those of a life that is merely open.

Limit: a cause is the likely one. The books see what was recorded, and not who deleted a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.window import Window

from redelivery.middleware.outcomes import TERMINAL, Outcome
from redelivery.workers.reconciliation.lives import KEY
from redelivery.workers.reconciliation.schema import or_default
from redelivery.workers.reconciliation.steps import number, position
from redelivery.workers.reconciliation.texts import named
from redelivery.workers.reconciliation.verdicts import DISCREPANCIES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["EVIDENCE", "MOST", "advised", "in_question", "with_histories", "without_histories"]

#: Events of one life that are listed.
MOST: Final = 100

#: The columns of `verdicts/`.
EVIDENCE: Final = (
    "task_id",
    "generation",
    "task",
    "queue",
    "verdict",
    "rule",
    "cause",
    "first_ms",
    "last_ms",
    "events",
    "nesting",
    "was",
    "advice",
    "history",
)
_STEP: Final = (
    "outcome",
    "at_ms",
    "delivery",
    "attempt",
    "reason",
    "worker",
    "exception",
    "delay_ms",
    "due_ms",
    "clock",
    "event_id",
)

_ADVICE: Final = {
    "orphaned": "export what is missing (an earlier day, another destination), and run the books again; or see the gaps",
    "duplicated": "compare the ends in the history: undo one where the task is not idempotent; look for what copied the message",
    "resurrected": "look for what put a copy of the message back (an operator, a restored broker); remove the copy where it waits",
    "phantom_dead_letter": "`redelivery dlq show` it: purge it if the task ended well, for a redrive would run it again",
    "missing_dead_letter": "look for who takes letters without the command `dlq`; publish the task again if it matters",
    "stuck": "see that a worker and a dispatcher run (`redelivery delayed list`); the message is safe meanwhile",
    "lost": "publish the task again, if it is idempotent or did not run; look for evictions, DEL and failovers at that time",
}


def advised(lives: DataFrame, heard: DataFrame) -> DataFrame:
    """The same with `advice`, and with the likely meaning in `cause`, where there is a discrepancy.

    `heard` tells of a `worker` that it was heard of (`last_ms`), once or more often.
    """
    silent = heard.where(F.col("worker") != "").groupBy("worker").agg(F.max("last_ms").alias("silent_ms"))
    advice = F.element_at(F.create_map(*(F.lit(word) for pair in _ADVICE.items() for word in pair)), F.col("verdict"))
    likely = F.coalesce(F.concat(F.lit("; likely "), _likely()), F.lit(""))
    return (
        lives.join(F.broadcast(silent), "worker", "left")
        .withColumn("cause", F.concat("cause", likely))
        .withColumn("advice", advice)
        .drop("silent_ms")
    )


def in_question(judged: DataFrame) -> DataFrame:
    """The lives whose events are evidence."""
    return judged.where(F.col("verdict").isin(*DISCREPANCIES) | F.col("is_correction"))


def with_histories(lives: DataFrame, of: DataFrame, events: DataFrame) -> DataFrame:
    """`lives` with `history`: the events of those that are in `of`, from all that were folded."""
    generation = ["task_id", "nesting", "generation"]
    asked = of.select(*KEY)
    told = events.selectExpr(
        *named({name: or_default(name) for name in (*KEY[:-1], *_STEP)}),
        f"{or_default('queue')} AS said_queue",
        f"{position(number('outcome'), or_default('delivery'))} AS at",
    )
    # An event without a queue is listed with each life of its generation: it belongs to one of them.
    mine = (F.col("said_queue") == F.col("queue")) | (F.col("said_queue") == "")
    once = told.join(asked, generation).where(mine).dropDuplicates([*KEY, "event_id"])
    latest = Window.partitionBy(*KEY).orderBy(F.desc("at"), F.desc("at_ms"), F.desc("event_id"))
    last = once.withColumn("place", F.row_number().over(latest)).where(F.col("place") <= MOST)
    step = F.struct("at", *_STEP)
    history = F.transform(F.array_sort(F.collect_list(step)), lambda each: F.struct(*(each[name].alias(name) for name in _STEP)))
    return lives.join(last.groupBy(*KEY).agg(history.alias("history")), list(KEY), "left")


def without_histories(lives: DataFrame) -> DataFrame:
    """The same where nothing is in question."""
    kinds = dict.fromkeys(_STEP, "string") | dict.fromkeys(("at_ms", "delivery", "attempt", "delay_ms", "due_ms"), "bigint")
    steps = ",".join(f"{name}:{kinds[name]}" for name in _STEP)
    none = {"history": F.lit(None).cast(f"array<struct<{steps}>>"), "advice": F.lit(None).cast("string")}
    return lives.withColumns(none)


def _likely() -> Column:
    """What the facts mean, most of the time; null where they say no more than the rule."""
    last, verdict = F.col("last_word"), F.col("verdict")
    openings = F.col(Outcome.PUBLISHED) + F.col(Outcome.REDRIVEN)
    waited = last.isin(str(Outcome.DEFERRED), str(Outcome.REDELIVERY_SCHEDULED))
    silence = F.coalesce(F.concat(F.lit(" by "), "worker", F.lit(", which was last heard of at "), _moment("silent_ms")), F.lit(""))
    lost = (
        F.when((F.col("ends") > 0) & (F.col("ends") < openings), _several(openings))
        .when(last == str(Outcome.RECEIVED), F.concat(F.lit("held"), silence, F.lit(": lost between its hand-over and its end")))
        .when(
            waited & (F.col("reason") == "worker_lost"),
            F.lit("given back after its worker died, and taken away since: an eviction, a DEL, another client"),
        )
        .when(waited, F.lit("taken out of the delay store or of its queue: an eviction, a DEL, a failover, a plain worker"))
        .otherwise(F.lit("taken from its queue by what records nothing: a plain worker, LREM, DEL, an eviction, a failover"))
    )
    stuck = F.when(
        F.col("place") == "delayed", F.concat(F.lit("no dispatcher has moved it since it was due at "), _moment("due_ms"))
    ).when(F.col("ownerless") > 0, F.lit("its worker is gone, and no other worker runs that would recover its messages"))
    meanings = {
        "orphaned": F.lit("its opening is not in these files: exported elsewhere, lost in a gap, or trimmed too early"),
        "duplicated": F.concat(
            F.lit("two copies of one message ran: a visibility timeout of plain workers, a failover, or a copy put in by hand ("),
            _ends(),
            F.lit(")"),
        ),
        "resurrected": F.lit("a copy of the message came back after its end: put in by hand, or by a broker that was restored"),
        "phantom_dead_letter": F.lit("put there without the command `dlq`, or the broker was restored from an older copy"),
        "missing_dead_letter": F.lit("taken out without the command `dlq`: LREM, DEL, an eviction, or a consumer"),
        "stuck": stuck,
        "lost": lost,
    }
    likely = F.lit(None).cast("string")
    for name, meaning in meanings.items():
        likely = F.when(verdict == name, meaning).otherwise(likely)
    return likely


def _several(openings: Column) -> Column:
    return F.concat(F.lit("published "), openings.cast("string"), F.lit(" times under one id, and ended less often"))


def _ends() -> Column:
    """Which ends there were, and how many of each."""
    words = [
        F.when(F.col(each) > 0, F.concat(F.lit(f"{each} "), F.col(each).cast("string"))) for each in Outcome if each in TERMINAL
    ]
    return F.concat_ws(", ", *words)


def _moment(name: str) -> Column:
    return F.concat(F.date_format(F.timestamp_millis(name), "yyyy-MM-dd HH:mm:ss"), F.lit(" UTC"))
