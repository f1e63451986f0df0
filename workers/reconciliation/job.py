"""The reconciliation: do the books balance, and if not, which task does not, and why.

1. Outcome events and the inventory are read (`reading.py`); with a state, only files that no earlier run has read (`state.py`).
2. Plain lives are sorted out and counted (`plain.py`), which is cheap, and leaves few; with `--all` it is left out.
3. What is left is folded into lives (`lives.py`), in one shuffle; the lives are kept, and everything else comes from them. With a
   state, the lives that earlier runs left open are joined with them (`carrying.py`).
4. Each life is judged (`verdicts.py`).
5. Verdicts with their evidence (`evidence.py`), metrics, possible repeats and the summary are written, all of them or none
   (`writing.py`); and after them the state.

Enters: URIs that Spark can read, a grace, and optionally the moment that ages are counted up to; without it that moment is the
latest one in the inputs (when the inventory was taken among them), so that the same inputs give the same books whenever they are
read. Leaves: the outputs and a `Summary`. Refuses, with `InputError`: inputs that are missing, empty, broken or of another shape.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.errors import InputError
from redelivery.middleware.outcomes import Outcome
from redelivery.workers.reconciliation.carrying import carried, held_schema, marked, to_hold
from redelivery.workers.reconciliation.evidence import EVIDENCE, advised, in_question, with_histories, without_histories
from redelivery.workers.reconciliation.figures import Figures, figures_of
from redelivery.workers.reconciliation.files import Files
from redelivery.workers.reconciliation.inputs import Inputs, gather
from redelivery.workers.reconciliation.lives import fold, with_queues_named
from redelivery.workers.reconciliation.plain import SortedOut, sort_out
from redelivery.workers.reconciliation.report import REPORT, page
from redelivery.workers.reconciliation.state import Run, State
from redelivery.workers.reconciliation.summary import Summary, summarise
from redelivery.workers.reconciliation.trend import Line, line_of, merged, read_trend, write_trend
from redelivery.workers.reconciliation.verdicts import judge
from redelivery.workers.reconciliation.writing import check_apart, check_output, replacing, write_summary, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Books", "reconcile"]

KEEP_MS = 35 * 86_400_000
#: Up to so many lives, keeping them judged is cheaper than judging them anew for each output.
FEW = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What to reconcile: URIs, the grace in ms, `as_of_ms` (ms since the epoch), and whether balanced lives are written too.

    With `state`, a URI, each run reads what no earlier one has read, and carries open lives over; `keep_ms` is for how long closed
    books can be corrected.
    """

    outcomes: str
    inventory: str
    output: str
    state: str | None = None
    grace_ms: int = 600_000
    as_of_ms: int | None = None
    keep_ms: int = KEEP_MS
    all_lives: bool = False


def reconcile(spark: SparkSession, books: Books, say: Callable[[str], object] = lambda _: None) -> Summary:
    """Reconcile, and write the outputs; `say` is told how far it is. Raises `InputError`, and whatever Spark raises."""
    files = Files(spark)
    output = _checked_output(files, books)
    state = None if books.state is None else State(spark, files, books.state)
    inputs = gather(spark, files, books.outcomes, books.inventory, state, {"grace_ms": books.grace_ms, "as_of_ms": books.as_of_ms})
    say(f"reading and folding the events{inputs.told}")
    with _keeping() as keep:
        plain = None
        if not books.all_lives:
            plain = sort_out(inputs.events, inputs.known(state), keep, after_ms=inputs.watermark_ms)
            inputs = replace(inputs, events=plain.events)
        lives = keep(fold(inputs.events, inputs.inventory))
        facts = _look(lives, plain, books, may_be_empty=inputs.base is not None and inputs.base.lives > 0)
        is_cut = facts["lives"] < FEW and str(spark.sparkContext.master).startswith("local")
        kept = _cut(lives) if is_cut else lives
        return _Run(books, files, output, inputs, kept, plain, facts, _cut if is_cut else keep).finish(state, say)


def _cut(table: DataFrame) -> DataFrame:
    """Keep a table that is asked for more than once, without how it was made, which Spark would plan anew each time.

    Planning is most of the work over few lives. An executor that dies takes such a table with it, so it is for a local session;
    what is kept goes when nothing refers to it any more.
    """
    return table.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)


@contextmanager
def _keeping() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """How to keep a table that is asked for more than once; all are let go of in the end."""
    with ExitStack() as kept:

        def keep(table: DataFrame) -> DataFrame:
            table.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(table.unpersist)
            return table

        yield keep


class _Run:
    """The run from its folded lives on."""

    def __init__(  # noqa: PLR0917 - what was given, read and found
        self,
        books: Books,
        files: Files,
        output: str,
        inputs: Inputs,
        lives: DataFrame,
        plain: SortedOut | None,
        facts: dict[str, Any],
        keep: Callable[[DataFrame], DataFrame],
    ) -> None:
        self.books, self.files, self.output, self.inputs, self.lives, self.facts = books, files, output, inputs, lives, facts
        self.plain, self.keep = plain, keep
        latest = [facts["latest_ms"], inputs.taken_ms, inputs.watermark_ms]
        found_ms = max((int(each) for each in latest if each is not None), default=0)
        self.as_of_ms = found_ms if books.as_of_ms is None else books.as_of_ms

    def finish(self, state: State | None, say: Callable[[str], object]) -> Summary:
        """Judge, and write everything."""
        books = self.books
        plain = {} if self.plain is None else self.plain.totals
        say(f"judging {self.facts['lives'] + plain.get('lives', 0):,} lives")
        judged, before = self._judged(state, say)
        if self.facts["lives"] < FEW:
            judged = self.keep(judged)
        times = {"as_of_ms": self.as_of_ms, "grace_ms": books.grace_ms}
        summary = summarise(judged, self.inputs.gaps, before=before, plain=plain, **times)
        with replacing(self.files, self.output) as folder:
            say(f"writing {books.output}")
            summary = replace(summary, figures=self._write(judged, folder, has_questions=summary.has_questions))
            trend = merged(self._trend(), line_of(summary))
            write_summary(self.files, summary, folder)
            write_trend(self.files, trend, folder)
            self.files.write(f"{folder}/{REPORT}", page(summary, trend))
            run = None if state is None else self._write_state(state, judged, say)
        if state is not None and run is not None:
            state.commit(run)
            write_trend(self.files, trend, str(books.state))
        say(f"wrote {books.output.rstrip('/')}/{REPORT}")
        return summary

    def _trend(self) -> list[Line]:
        """What earlier runs left: in the output that is replaced, and in the state."""
        places = [self.output] if self.books.state is None else [self.output, self.books.state]
        return [line for place in places for line in read_trend(self.files, place)]

    def _judged(self, state: State | None, say: Callable[[str], object]) -> tuple[DataFrame, DataFrame | None]:
        """All lives with their verdicts, and what earlier runs had counted of them."""
        alone = self.lives
        base = self.inputs.base
        if state is None or base is None or base.version == 0:
            return marked(self._judge(alone), None), None
        held = self.keep(state.lives(base, held_schema(alone)))
        watermark_ms = -1 if base.watermark_ms is None else base.watermark_ms
        found = carried(alone, held, self.inputs.events, self.inputs.inventory, watermark_ms, self.inputs.earlier, self.keep)
        if found.late:
            say(f"{found.late:,} tasks have events that came late: theirs are read again")
        judged = marked(self._judge(found.alone), None).unionByName(marked(self._judge(found.touched, named=True), found.known))
        return judged, found.before

    def _judge(self, lives: DataFrame, *, named: bool = False) -> DataFrame:
        if self.facts["unnamed"] and not named:
            lives = with_queues_named(lives)
        looked_ms = self.facts["looked_ms"] if self.inputs.taken_ms is None else self.inputs.taken_ms
        redriven = named or self.facts["redriven"] > 0
        times = {"as_of_ms": self.as_of_ms, "grace_ms": self.books.grace_ms, "looked_ms": looked_ms}
        return judge(lives, **times, any_redriven=redriven)

    def _write(self, judged: DataFrame, folder: str, *, has_questions: bool) -> Figures:
        told = judged.where(~F.col("is_standing"))
        shown = told if self.books.all_lives else told.where((F.col("verdict") != "balanced") | F.col("is_correction"))
        if has_questions:
            of = self.keep(in_question(told))
            heard = judged.select("worker", "last_ms")
            heard = heard if self.plain is None else heard.unionByName(self.plain.heard.select(*heard.columns))
            shown = with_histories(advised(shown, heard), of, self.inputs.all_events(of))
        else:
            shown = without_histories(shown)
        write_table(shown.select(*EVIDENCE), folder, "verdicts")
        repeats = told.where("is_repeated").select("task_id", "generation", "task", "queue", "verdict", "cause", "nesting")
        write_table(repeats, folder, "repeats")
        return figures_of(told, None if self.plain is None else self.plain.cells, folder)

    def _write_state(self, state: State, judged: DataFrame, say: Callable[[str], object]) -> Run:
        books = self.books
        say(f"writing {books.state}")
        lives = to_hold(judged, self.lives.columns, as_of_ms=self.as_of_ms, keep_ms=books.keep_ms)
        lives = self.keep(lives)
        run = self.inputs.next_run(self.facts["watermark_ms"]).forgetting(self.as_of_ms, books.keep_ms)
        return state.write(replace(run, lives=lives.count()), lives)


def _checked_output(files: Files, books: Books) -> str:
    inputs = {"outcomes": books.outcomes, "inventory": books.inventory}
    if books.state is not None:
        check_apart(files, books.state, inputs, "state")
        inputs["state"] = books.state
    return check_output(files, books.output, inputs)


def _look(lives: DataFrame, plain: SortedOut | None, books: Books, *, may_be_empty: bool) -> dict[str, Any]:
    """One look over all lives, which fills the cache: what decides how to go on, and whether the rows can be used at all."""
    row = lives.agg(
        F.count("*").alias("lives"),
        F.sum("events").alias("events"),
        F.max("last_ms").alias("watermark_ms"),
        F.greatest(F.max("last_ms"), F.max("seen_ms")).alias("latest_ms"),
        F.max("seen_ms").alias("looked_ms"),
        F.count_if(F.col("queue") == "").alias("unnamed"),
        F.sum("unknown").alias("unknown"),
        F.count_if(F.col(Outcome.REDRIVEN) > 0).alias("redriven"),
        F.sum("broken").alias("broken"),
        F.sum("misplaced").alias("misplaced"),
    ).first()
    facts: dict[str, Any] = {} if row is None else row.asDict()
    if plain is not None:
        facts["events"] = (facts["events"] or 0) + plain.totals["events"]
        facts |= {name: max(filter(None, (facts[name], plain.latest_ms)), default=None) for name in ("latest_ms", "watermark_ms")}
    if facts.get("broken"):
        msg = f"{books.outcomes}: {facts['broken']} rows have no task_id, event_id or at_ms: these are no outcome events"
    elif facts.get("unknown"):
        msg = (
            f"{books.outcomes}: {facts['unknown']} rows have an outcome of none of our words: a newer version may have written them"
        )
    elif facts.get("misplaced"):
        msg = f"{books.inventory}: {facts['misplaced']} rows have no task_id, seen_ms or known place: this is no inventory"
    elif not facts.get("events") and not may_be_empty:
        msg = f"{books.outcomes} holds no outcome events: export them first, or look at the path"
    else:
        return facts
    raise InputError(msg)
