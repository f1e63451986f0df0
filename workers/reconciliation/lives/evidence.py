"""Evidence: why a life does not balance, what happened to it step by step, and what to do.

For a discrepancy, `cause` says what is known and what it likely means, `advice` what to do, and `history` lists the last `LIMIT`
events by delivery and step. Events are looked up only for lives with a discrepancy or a correction.

Limit: a cause is only the likely one. The books see recorded events, and not who deleted a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.messages.events import TERMINAL, Outcome, Reason

from ..rules import DISCREPANCIES
from ..schema import or_default
from ..spark.sql import grouped, named, one_of, quoted
from ..steps import DELIVERY, number, position
from .lives import KEY, OPENED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The maximum number of events in a history.
LIMIT: Final = 100

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
    "orphaned": "export what is missing (an earlier day, another destination) and run the books again; or look at the gaps",
    "duplicated": "compare the ends in the history, and undo one if the task is not idempotent; find out what copied the message",
    "resurrected": "find out what put a copy of the message back (an operator, a restored broker), and remove the copy",
    "phantom_dead_letter": "look at it with `redelivery dlq show`; if the task ended well, purge it: a redrive would run it again",
    "missing_dead_letter": "find out what removes dead letters without `redelivery dlq`; publish the task again if it matters",
    "stuck": "make sure that a worker and a dispatcher run (`redelivery delayed list`); the message is safe meanwhile",
    "lost": "publish the task again if it is idempotent or did not run; look for evictions, DEL and failovers at that time",
}


def advised(lives: DataFrame, last_seen: DataFrame) -> DataFrame:
    """Add `advice`, and the likely meaning to `cause`, if there is a discrepancy.

    Each row of `last_seen` has a `worker` and the time of one of its events (`last_ms`).
    """
    silent = grouped(last_seen.where("worker != ''"), ("worker",), {"silent_ms": "max(last_ms)"})
    advice = " ".join(f"WHEN '{name}' THEN {quoted(advice)}" for name, advice in _ADVICE.items())
    said = {"cause": f"concat(cause, coalesce(concat('; likely ', {_likely()}), ''))", "advice": f"CASE verdict {advice} END"}
    found = lives.join(F.broadcast(silent), "worker", "left")
    return found.withColumns({name: F.expr(text) for name, text in said.items()}).drop("silent_ms")


def in_question(judged: DataFrame) -> DataFrame:
    """The lives that need a history."""
    return judged.where(f"{one_of('verdict', DISCREPANCIES)} OR is_correction")


def with_histories(lives: DataFrame, of: DataFrame, events: DataFrame) -> DataFrame:
    """Add `history` to `lives`: the `events` of those lives that are also in `of`."""
    generation = ["task_id", "nesting", "generation"]
    asked = of.select(*KEY)
    steps_of_all = events.selectExpr(
        *named({name: or_default(name) for name in (*KEY[:-1], *_STEP)}),
        f"{or_default('queue')} AS said_queue",
        f"{position(number('outcome'), or_default('delivery'))} AS at",
    )
    # An event without a queue may belong to any life of its generation, so each of them lists it.
    mine = steps_of_all.join(asked, generation).where("said_queue = queue OR said_queue = ''").dropDuplicates([*KEY, "event_id"])
    place = f"row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY at DESC, at_ms DESC, event_id DESC) AS place"
    last = mine.selectExpr("*", place).where(f"place <= {LIMIT}")
    steps = f"array_sort(collect_list(struct(at, {', '.join(_STEP)})))"
    history = f"transform({steps}, each -> struct({', '.join(f'each.{name} AS {name}' for name in _STEP)}))"
    return lives.join(grouped(last, KEY, {"history": history}), list(KEY), "left")


def without_histories(lives: DataFrame) -> DataFrame:
    """Add the columns of `with_histories` and `advised` without values, if no life needs them."""
    kinds = dict.fromkeys(_STEP, "string") | dict.fromkeys(("at_ms", "delivery", "attempt", "delay_ms", "due_ms"), "bigint")
    steps = ",".join(f"{name}:{kinds[name]}" for name in _STEP)
    return lives.selectExpr("*", f"CAST(NULL AS array<struct<{steps}>>) AS history", "CAST(NULL AS STRING) AS advice")


def _likely() -> str:
    """The likely meaning of the facts, in SQL; null if the rule already says it."""
    waited = one_of("last_word", (Outcome.DEFERRED, Outcome.REDELIVERY_SCHEDULED))
    silence = f"coalesce(concat(' by ', worker, ', which was last heard of at ', {_moment('silent_ms')}), '')"
    lost = {
        f"ends > 0 AND ends < {OPENED}": f"concat('published ', {OPENED}, ' times under one id, and ended less often')",
        f"last_word = '{Outcome.RECEIVED}'": f"concat('held', {silence}, ': lost between its hand-over and its end')",
        f"{waited} AND reason = '{Reason.WORKER_LOST}'": (
            "'given back after its worker died, and removed since: by an eviction, a DEL or another client'"
        ),
        waited: "'removed from the delay store or from its queue: by an eviction, a DEL, a failover or a plain worker'",
        "true": "'removed from its queue without a record: by a plain worker, LREM, DEL, an eviction or a failover'",
    }
    stuck = {
        "place = 'delayed'": f"concat('no dispatcher has moved it since it was due at ', {_moment('due_ms')})",
        "ownerless > 0": "'its worker is gone, and no other worker runs to recover its messages'",
    }
    ends = ", ".join(f"CASE WHEN {each} > 0 THEN concat('{each} ', {each}) END" for each in Outcome if each in TERMINAL)
    copied = (
        "two copies of one message ran: a visibility timeout of plain workers, a failover, a publication that was repeated because"
        " its answer was lost, or a copy put in by hand"
    )
    # The delivery that ended, or a later one, was delivered again, and one of the life's redeliveries was a crash.
    crashed = f"repeats > 0 AND floor(last_scheduled / {DELIVERY}) >= floor(first_end / {DELIVERY})"
    crash = (
        f"'a worker died, or lost its connection, after it had recorded an end and before it acknowledged the message, which was"
        f" delivered again ({Reason.WORKER_LOST} in the history)'"
    )
    meanings = {
        "orphaned": "'its opening is not in these files: exported elsewhere, lost in a gap, or trimmed too early'",
        "duplicated": f"concat(CASE WHEN {crashed} THEN {crash} ELSE '{copied}' END, ' (', concat_ws(', ', {ends}), ')')",
        "resurrected": _first_that_holds(
            {
                crashed: crash,
                "true": "'a copy of the message came back after its end: put in by hand, or by a broker that was restored'",
            }
        ),
        "phantom_dead_letter": "'put there without `redelivery dlq`, or the broker was restored from an older copy'",
        "missing_dead_letter": "'removed without `redelivery dlq`: by LREM, DEL, an eviction or a consumer'",
        "stuck": _first_that_holds(stuck),
        "lost": _first_that_holds(lost),
    }
    return _first_that_holds({f"verdict = '{name}'": meaning for name, meaning in meanings.items()})


def _first_that_holds(texts: dict[str, str]) -> str:
    return f"CASE {' '.join(f'WHEN {holds} THEN {text}' for holds, text in texts.items())} END"


def _moment(name: str) -> str:
    return f"concat(date_format(timestamp_millis({name}), 'yyyy-MM-dd HH:mm:ss'), ' UTC')"
