"""The reconciliation: do the books balance, and if not, which tasks are wrong, and why.

1. Read outcome events and the inventory (`reading.py`); with a state, only files that no earlier run has read (`state.py`).
2. Sort out and count the plain lives (`plain.py`). This is cheap, and leaves few other lives. `--all` skips this step.
3. Fold the other events into lives (`lives.py`), in one shuffle. All tables come from these lives. With a state, join them with the
   lives that earlier runs left open (`carrying.py`).
4. Judge each life (`verdicts.py`).
5. Write verdicts with their evidence (`evidence.py`), metrics, possible repeats and the summary, all or none (`writing.py`). Then
   write the state.

Ages count up to `as_of_ms`, by default the time of the inventory: so the same inputs always give the same books, and an event from
a fast clock does not make other lives look old. If the inventory has neither a note of its time nor a row, ages count up to the
latest event. Inputs that are missing, empty, broken or of another shape raise `InputError`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from redelivery.errors import InputError
from redelivery.middleware.messages.events import Outcome

from .figures.attempts import attempts_of
from .figures.deadlines import in_time_of
from .figures.figures import Figures, faults_of, figures_of, runs_of
from .inputs.carrying import carried, held_schema, marked, may_be_late, to_hold
from .inputs.inputs import Inputs, gather
from .inputs.state import State
from .lives.evidence import EVIDENCE, advised, in_question, with_histories, without_histories
from .lives.lives import IS_BROKEN, IS_MISPLACED, IS_UNKNOWN, fold, with_queues_named
from .lives.plain import SortedOut, sort_out, still_open
from .lives.verdicts import judge
from .outputs.writing import check_apart, check_output, replacing, write_summary, write_table
from .report.report import REPORT, page
from .report.summary import Line, Summary, line_of, merged, read_trend, summarise, write_trend
from .report.wording import counted
from .spark.few_rows import FEW, Execution, as_kept, for_few_rows, for_many_rows, is_local
from .spark.files import Files
from .spark.session import LOOKING, with_settings
from .spark.sql import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from .inputs.state import Run

#: Writes a part of the output, and returns its figures.
_Writer = Callable[[], Figures]
KEEP_MS = 35 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The inputs and options. Places are URIs. `all_lives` writes balanced lives, too.

    With a `state`, each run reads only files that no earlier run has read, and carries open lives over. For `keep_ms`, late events
    can correct verdicts. `are_small` skips the sorting out of plain lives, which is not worth it below some ten thousand events.
    """

    outcomes: str
    inventory: str
    output: str
    state: str | None = None
    grace_ms: int = 600_000
    as_of_ms: int | None = None
    keep_ms: int = KEEP_MS
    all_lives: bool = False
    are_small: bool = False


def reconcile(spark: SparkSession, books: Books, say: Callable[[str], object] = lambda _: None) -> Summary:
    """Reconcile, and write the outputs. Calls `say` with the progress. Raises `InputError` and Spark's errors."""
    files = Files(spark)
    output = _checked_output(files, books)
    state = None if books.state is None else State(spark, files, books.state)
    inputs = gather(spark, files, books.outcomes, books.inventory, state, {"grace_ms": books.grace_ms, "as_of_ms": books.as_of_ms})
    say(f"reading {inputs.description}")
    with with_settings(spark, LOOKING), _persisting() as keep:
        plain = None
        if not (books.all_lives or books.are_small):
            plain = sort_out(inputs.events, inputs.known(state), keep, after_ms=inputs.watermark_ms)
            inputs = replace(inputs, events=plain.events, events_of_all=inputs.events)
            say(f"{plain.totals['lives']:,} tasks went as they should; folding the events of {plain.totals['asked']:,} others")
        left_open = inputs.open_before - (0 if plain is None else plain.totals["closed"])
        # This includes the lives in the inventory, except those without events.
        of_events = 0 if books.are_small else FEW
        about = (of_events if plain is None else plain.totals["asked"]) + left_open
        are_few = about < FEW and is_local(spark)
        with for_few_rows(spark, about) if are_few else for_many_rows(keep) as execution:
            execution.compile_queries()
            lives = execution.keep(fold(inputs.events, inputs.inventory))
            facts = _check_rows(lives, plain, books, inputs) | {"left_open": left_open}
        judged = facts["lives"] + left_open
        few_lives = judged < FEW and is_local(spark)
        with for_few_rows(spark, judged) if few_lives else for_many_rows(keep) as execution:
            lives = execution.keep(lives) if few_lives and not are_few else lives
            return _Run(books, files, output, inputs, lives, plain, facts, execution).finish(state, say)


@contextmanager
def _persisting() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """A function that persists a table. All such tables are released at the end."""
    with ExitStack() as kept:

        def keep(table: DataFrame) -> DataFrame:
            table.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(table.unpersist)
            return as_kept(table)

        yield keep


@dataclass(slots=True)
class _Run:
    """The steps of a run after the fold."""

    books: Books
    files: Files
    output: str
    inputs: Inputs
    lives: DataFrame
    plain: SortedOut | None
    facts: dict[str, Any]
    execution: Execution
    left: Run | None = None
    as_of_ms: int = field(init=False)

    def __post_init__(self) -> None:
        found_ms = (self.books.as_of_ms, self._looked_ms(), self.facts["watermark_ms"], self.inputs.watermark_ms, 0)
        self.as_of_ms = next(int(each) for each in found_ms if each is not None)

    def finish(self, state: State | None, say: Callable[[str], object]) -> Summary:
        """Judge the lives, and write everything."""
        books = self.books
        plain = {} if self.plain is None else self.plain.totals
        say(f"judging {counted(self.facts['lives'] + plain.get('lives', 0), 'life', 'lives')}")
        judged, before = self._judged(state, say)
        if self.facts["lives"] < FEW:
            judged = self.execution.keep(judged)
        times = {"as_of_ms": self.as_of_ms, "grace_ms": books.grace_ms}
        summary = summarise(judged, self.inputs.gaps, before=before, plain=plain, execution=self.execution, **times)
        summary = replace(summary, **self._about())
        if summary.has_questions and self.inputs.base is not None and self.inputs.base.read:
            self.execution.compile_queries()
        # A repetition does not write its state again: meanwhile the folder would have no whole state.
        is_new = state is not None and self.inputs.base is state.last
        with replacing(self.files, self.output) as folder:
            say(f"writing {books.output}")
            writers = self._writers(judged, folder, summary)
            if state is not None and is_new:  # first, because it takes longest
                writers.insert(0, partial(self._write_state, state, judged))
            summary = replace(summary, figures=reduce(or_, self.execution.run_all(writers)))
            trend = merged(self._trend(), line_of(summary))
            write_summary(self.files, summary.to_dict(), folder)
            write_trend(self.files, trend, folder)
            self.files.write(f"{folder}/{REPORT}", page(summary, trend))
        if state is not None:
            say(f"writing {books.state}")
            if self.left is not None:
                state.commit(self.left)
            write_trend(self.files, trend, str(books.state))
        say(f"wrote {books.output.rstrip('/')}/{REPORT}")
        return summary

    def _about(self) -> dict[str, Any]:
        taken, facts = self.inputs.taken, self.facts
        of_events = {"from_ms": facts["earliest_ms"], "until_ms": facts["watermark_ms"], "dead_letters_held": facts["held"]}
        return {"app": taken.app, "broker": taken.broker, "unlisted": dict(taken.unlisted), **of_events}

    def _trend(self) -> list[Line]:
        """The trend of earlier runs, from the output that is replaced and from the state."""
        places = [self.output] if self.books.state is None else [self.output, self.books.state]
        return [line for place in places for line in read_trend(self.files, place)]

    def _judged(self, state: State | None, say: Callable[[str], object]) -> tuple[DataFrame, DataFrame | None]:
        """All lives with their verdicts, and those of earlier runs as these runs counted them (None without any)."""
        base, facts = self.inputs.base, self.facts
        if state is None or base is None or base.version == 0 or not (facts["left_open"] or facts["late"]):
            return marked(self._judge(self._named(self.lives), any_redriven=facts["redriven"] > 0), None), None
        held = self._still_open(state.lives(base, held_schema(self.lives)))
        of_fresh = {"are_named": not facts["unnamed"], "any_late": facts["late"] > 0}
        found = carried(self.lives, held, self.inputs, self.execution, **of_fresh)
        if found.late:
            say(f"{counted(found.late, 'task has', 'tasks have')} late events: all events of these are read again")
        lives = self._named(found.alone).unionByName(found.touched)
        any_redriven = found.any_redriven or facts["redriven"] > 0
        # If there was a redrive, each life is compared with the other lives of its task, so the table is used twice.
        lives = self.execution.keep(lives) if any_redriven else lives
        return marked(self._judge(lives, any_redriven=any_redriven), found.known), found.before

    def _still_open(self, held: DataFrame) -> DataFrame:
        """The lives that earlier runs left open, without those that this run closed as plain lives."""
        if not self.facts["left_open"]:
            return held.limit(0)
        if self.plain is not None and self.plain.totals["closed"]:
            held = still_open(held, self.execution.broadcast(self.plain.closed))
        return self.execution.keep(held)

    def _named(self, lives: DataFrame) -> DataFrame:
        return with_queues_named(lives) if self.facts["unnamed"] else lives

    def _judge(self, lives: DataFrame, *, any_redriven: bool) -> DataFrame:
        times = {"as_of_ms": self.as_of_ms, "grace_ms": self.books.grace_ms}
        return judge(lives, **times, looked_ms=self._looked_ms(), any_redriven=any_redriven)

    def _looked_ms(self) -> int | None:
        """The time of the inventory; None if it has neither a note nor a row."""
        noted_ms = self.inputs.taken.seen_ms
        return self.facts["looked_ms"] if noted_ms is None else noted_ms

    def _writers(self, judged: DataFrame, folder: str, summary: Summary) -> list[_Writer]:
        """Functions that write the tables and return their figures. None of them reads what another writes.

        A table that is empty by the `summary` is written without a query over the lives.
        """
        reported = judged.where("NOT is_standing")
        has_questions = summary.has_questions

        def verdicts() -> Figures:
            shown = reported if self.books.all_lives else reported.where("verdict != 'balanced' OR is_correction")
            if not (has_questions or self.books.all_lives or summary.verdicts["in_flight"]):
                shown = reported.limit(0)
            shown = self._with_evidence(shown, judged, reported) if has_questions else without_histories(shown)
            write_table(shown.selectExpr(*EVIDENCE), folder, "verdicts")
            return faults_of(self.inputs.spark, folder) if has_questions else Figures()

        def repeats() -> Figures:
            repeated = reported.where("is_repeated") if summary.possible_repeats else reported.limit(0)
            repeated = repeated.selectExpr("task_id", "generation", "task", "queue", "verdict", "cause", "nesting")
            write_table(repeated, folder, "repeats")
            return Figures()

        inputs = self.inputs
        attempts = (
            attempts_of(inputs.events, None) if inputs.events_of_all is None else attempts_of(inputs.events_of_all, inputs.events)
        )
        runs = partial(runs_of, attempts, folder, self.execution)
        deadlines = inputs.taken.deadlines
        in_time = partial(in_time_of, deadlines=deadlines, as_of_ms=self.as_of_ms) if deadlines else None
        plain = None if self.plain is None else self.plain.cells
        return [verdicts, runs, *figures_of(reported, plain, folder, self.execution, in_time), repeats]

    def _with_evidence(self, shown: DataFrame, judged: DataFrame, reported: DataFrame) -> DataFrame:
        of = self.execution.keep(in_question(reported))
        last_seen = judged.select("worker", "last_ms")
        last_seen = last_seen if self.plain is None else last_seen.unionByName(self.plain.last_seen.select(*last_seen.columns))
        return with_histories(advised(shown, last_seen), self.execution.broadcast(of), self.inputs.all_events(of))

    def _write_state(self, state: State, judged: DataFrame) -> Figures:
        """Write the state for the next run, without making it the current one."""
        # A wrong clock or `as_of_ms` may be in the future. The state must not forget the days before it: they would not be read.
        looked_ms = self._looked_ms()
        reached_ms = self.as_of_ms if looked_ms is None else min(self.as_of_ms, looked_ms)
        lives = to_hold(judged, self.lives.columns, self.execution.broadcast, as_of_ms=reached_ms, keep_ms=self.books.keep_ms)
        run = self.inputs.next_run(self.facts["watermark_ms"]).forgetting(reached_ms, self.books.keep_ms)
        self.left = state.write(run, lives, about=self.facts["lives"] + self.facts["left_open"])
        return Figures()


def _checked_output(files: Files, books: Books) -> str:
    inputs = {"outcomes": books.outcomes, "inventory": books.inventory}
    if books.state is not None:
        check_apart(files, books.state, inputs, "state")
        inputs["state"] = books.state
    return check_output(files, books.output, inputs)


def _check_rows(lives: DataFrame, plain: SortedOut | None, books: Books, inputs: Inputs) -> dict[str, Any]:
    """Check the rows, and find the facts that decide the next steps, in one query that also fills the cache."""
    asked = {
        "lives": "count(*)",
        "earliest_ms": "min(first_ms)",
        "watermark_ms": "max(last_ms)",
        "looked_ms": "max(seen_ms)",
        "held": "count_if(in_dead_letters > 0)",
        "unnamed": "count_if(queue = '')",
        "redriven": f"count_if({Outcome.REDRIVEN} > 0)",
        "late": f"count_if({may_be_late(inputs.watermark_ms)})",
        **{name: f"sum({name})" for name in ("events", "unknown", "broken", "misplaced")},
    }
    facts = row_of(lives, asked)
    if plain is not None:
        facts["events"] = (facts["events"] or 0) + plain.totals["events"]
        facts["watermark_ms"] = max(filter(None, (facts["watermark_ms"], plain.latest_ms)), default=None)
        facts["earliest_ms"] = min(filter(None, (facts["earliest_ms"], plain.earliest_ms)), default=None)
    events = inputs.events if inputs.events_of_all is None else inputs.events_of_all
    if facts.get("broken"):
        what = f"{facts['broken']} rows have no task_id, event_id or at_ms that can be used: these are not outcome events"
        msg = f"{books.outcomes}: {what}; {_example(events, IS_BROKEN)}"
    elif facts.get("unknown"):
        what = f"{facts['unknown']} rows have an unknown outcome: a newer version may have written them"
        msg = f"{books.outcomes}: {what}; {_example(events, IS_UNKNOWN)}"
    elif facts.get("misplaced"):
        what = f"{facts['misplaced']} rows have no task_id, seen_ms or known place: this is not an inventory"
        msg = f"{books.inventory}: {what}; {_example(inputs.inventory, IS_MISPLACED)}"
    elif not facts.get("events") and not (inputs.base and inputs.base.version):
        msg = f"{books.outcomes} holds no outcome events: export them first, or look at the path"
    else:
        return facts
    raise InputError(msg)


def _example(rows: DataFrame, condition: str) -> str:
    """Name one of the rows for which the condition holds."""
    found = rows.where(condition).selectExpr("coalesce(task_id, '') AS task_id", "input_file_name() AS file").head(1)
    return " and ".join(f"one is of task {each.task_id!r}, in {each.file}" for each in found)
