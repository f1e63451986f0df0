"""The reconciliation: do the books balance, and if not, which tasks are wrong, and why.

1. Outcome events and the inventory are read (`reading.py`); with a state, only files that no earlier run has read (`state.py`).
2. Plain lives are sorted out and counted (`plain.py`), which is cheap, and leaves few others; with `--all` this step is skipped.
3. The other events are folded into lives (`lives.py`), in one shuffle; the lives are kept, and all tables come from them. With a
   state, the lives that earlier runs left open are joined with them (`carrying.py`).
4. Each life is judged (`verdicts.py`).
5. Verdicts with their evidence (`evidence.py`), metrics, possible repeats and the summary are written, all of them or none
   (`writing.py`); and after them the state.

Ages are counted up to `as_of_ms`. By default it is the time when the inventory was taken, so that the same inputs give the same
books whenever they are read, and an event from a clock that is ahead makes no other life old. An inventory that does not say its
time, and has no row, counts from the latest event. Refused, with `InputError`: inputs that are missing, empty, broken or of another
shape.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
from .spark.few_rows import FEW, Ways, as_kept, few, is_local, many
from .spark.files import Files
from .spark.session import LOOKING, with_settings
from .spark.sql import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from .inputs.state import Run

#: A function that writes a part of the output, and returns the figures of that part.
_Work = Callable[[], Figures]
KEEP_MS = 35 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The inputs and options: URIs, the grace in ms, `as_of_ms` (ms since the epoch), and whether balanced lives are written too.

    With `state`, a URI, each run reads only files that no earlier run has read, and carries open lives over; for `keep_ms` closed
    books can be corrected. `are_small` says that there are at most some ten thousand events: then sorting plain lives out takes
    longer than it saves, and all events are folded.
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
    """Reconcile, and write the outputs; `say` is called with the progress. Raises `InputError`, and whatever Spark raises."""
    files = Files(spark)
    output = _checked_output(files, books)
    state = None if books.state is None else State(spark, files, books.state)
    inputs = gather(spark, files, books.outcomes, books.inventory, state, {"grace_ms": books.grace_ms, "as_of_ms": books.as_of_ms})
    say(f"reading {inputs.told}")
    with with_settings(spark, LOOKING), _keeping() as keep:
        plain = None
        if not (books.all_lives or books.are_small):
            plain = sort_out(inputs.events, inputs.known(state), keep, after_ms=inputs.watermark_ms)
            inputs = replace(inputs, events=plain.events, all_told=inputs.events)
            say(f"{plain.totals['lives']:,} tasks went as they should; folding the events of {plain.totals['asked']:,} others")
        left_open = inputs.open_before - (0 if plain is None else plain.totals["closed"])
        # The lives that the broker holds are among these, except lives without any event.
        of_events = 0 if books.are_small else FEW
        asked = (of_events if plain is None else plain.totals["asked"]) + left_open
        few_asked = asked < FEW and is_local(spark)
        with few(spark, asked) if few_asked else many(keep) as ways:
            ways.look_back()
            lives = ways.keep(fold(inputs.events, inputs.inventory))
            facts = _look(lives, plain, books, inputs) | {"left_open": left_open}
        judged = facts["lives"] + left_open
        few_lives = judged < FEW and is_local(spark)
        with few(spark, judged) if few_lives else many(keep) as ways:
            lives = ways.keep(lives) if few_lives and not few_asked else lives
            return _Run(books, files, output, inputs, lives, plain, facts, ways).finish(state, say)


@contextmanager
def _keeping() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """A function that keeps a table which is used more than once; all of them are released at the end."""
    with ExitStack() as kept:

        def keep(table: DataFrame) -> DataFrame:
            table.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(table.unpersist)
            return as_kept(table)

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
        ways: Ways,
    ) -> None:
        self.books, self.files, self.output, self.inputs, self.lives, self.facts = books, files, output, inputs, lives, facts
        self.plain, self.ways = plain, ways
        self.left: Run | None = None
        found_ms = (books.as_of_ms, self._looked_ms(), facts["watermark_ms"], inputs.watermark_ms, 0)
        self.as_of_ms = next(int(each) for each in found_ms if each is not None)

    def finish(self, state: State | None, say: Callable[[str], object]) -> Summary:
        """Judge the lives, and write everything."""
        books = self.books
        plain = {} if self.plain is None else self.plain.totals
        say(f"judging {self.facts['lives'] + plain.get('lives', 0):,} lives")
        judged, before = self._judged(state, say)
        if self.facts["lives"] < FEW:
            judged = self.ways.keep(judged)
        times = {"as_of_ms": self.as_of_ms, "grace_ms": books.grace_ms}
        summary = summarise(judged, self.inputs.gaps, before=before, plain=plain, ways=self.ways, **times)
        summary = replace(summary, **self._about())
        if summary.has_questions and self.inputs.base is not None and self.inputs.base.read:
            self.ways.look_back()
        # A repetition leaves the state that there is: while it was written again, there would be none.
        is_new = state is not None and self.inputs.base is state.last
        with replacing(self.files, self.output) as folder:
            say(f"writing {books.output}")
            works = self._writing(judged, folder, summary)
            if state is not None and is_new:  # the state takes longest to write
                works.insert(0, partial(self._write_state, state, judged))
            summary = replace(summary, figures=reduce(or_, self.ways.done(works)))
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
        """The app and broker of these books, the period of their events, and how many dead letters the broker still has."""
        taken, facts = self.inputs.taken, self.facts
        period = {"from_ms": facts["earliest_ms"], "until_ms": facts["watermark_ms"]}
        return {
            "app": taken.app,
            "broker": taken.broker,
            "unlisted": dict(taken.unlisted),
            "dead_letters_held": facts["held"],
            **period,
        }

    def _trend(self) -> list[Line]:
        """The lines of earlier runs: in the output that is replaced, and in the state."""
        places = [self.output] if self.books.state is None else [self.output, self.books.state]
        return [line for place in places for line in read_trend(self.files, place)]

    def _judged(self, state: State | None, say: Callable[[str], object]) -> tuple[DataFrame, DataFrame | None]:
        """All lives with their verdicts, and the same lives as earlier runs had counted them."""
        base, facts = self.inputs.base, self.facts
        if state is None or base is None or base.version == 0 or not (facts["left_open"] or facts["late"]):
            return marked(self._judge(self._named(self.lives), any_redriven=facts["redriven"] > 0), None), None
        held = self._still_open(state.lives(base, held_schema(self.lives)))
        of_fresh = {"are_named": not facts["unnamed"], "any_late": facts["late"] > 0}
        found = carried(self.lives, held, self.inputs, self.ways, **of_fresh)
        if found.late:
            say(f"{found.late:,} tasks have events that came late: theirs are read again")
        lives = self._named(found.alone).unionByName(found.touched)
        any_redriven = found.any_redriven or facts["redriven"] > 0
        # If there is a redrive, each life is also compared with the others of its task, so the table is used twice.
        lives = self.ways.keep(lives) if any_redriven else lives
        return marked(self._judge(lives, any_redriven=any_redriven), found.known), found.before

    def _still_open(self, held: DataFrame) -> DataFrame:
        """The lives that earlier runs left open, without those that this run has closed as plain ones."""
        if not self.facts["left_open"]:
            return held.limit(0)
        if self.plain is not None and self.plain.totals["closed"]:
            held = still_open(held, self.ways.sent(self.plain.closed))
        return self.ways.keep(held)

    def _named(self, lives: DataFrame) -> DataFrame:
        return with_queues_named(lives) if self.facts["unnamed"] else lives

    def _judge(self, lives: DataFrame, *, any_redriven: bool) -> DataFrame:
        times = {"as_of_ms": self.as_of_ms, "grace_ms": self.books.grace_ms}
        return judge(lives, **times, looked_ms=self._looked_ms(), any_redriven=any_redriven)

    def _looked_ms(self) -> int | None:
        """When the inventory was taken; None if it has no row and no note."""
        noted_ms = self.inputs.taken.seen_ms
        return self.facts["looked_ms"] if noted_ms is None else noted_ms

    def _writing(self, judged: DataFrame, folder: str, summary: Summary) -> list[_Work]:
        """The works that write the tables and return the figures of each; no work reads what another one writes.

        If the `summary` says that a table has no row, no life is read for it.
        """
        told = judged.where("NOT is_standing")
        has_questions = summary.has_questions

        def verdicts() -> Figures:
            shown = told if self.books.all_lives else told.where("verdict != 'balanced' OR is_correction")
            if not (has_questions or self.books.all_lives or summary.verdicts["in_flight"]):
                shown = told.limit(0)
            shown = self._with_evidence(shown, judged, told) if has_questions else without_histories(shown)
            write_table(shown.selectExpr(*EVIDENCE), folder, "verdicts")
            return faults_of(self.inputs.spark, folder) if has_questions else Figures()

        def repeats() -> Figures:
            repeated = told.where("is_repeated") if summary.possible_repeats else told.limit(0)
            repeated = repeated.selectExpr("task_id", "generation", "task", "queue", "verdict", "cause", "nesting")
            write_table(repeated, folder, "repeats")
            return Figures()

        inputs = self.inputs
        attempts = attempts_of(inputs.events, None) if inputs.all_told is None else attempts_of(inputs.all_told, inputs.events)
        runs = partial(runs_of, attempts, folder, self.ways)
        deadlines = inputs.taken.deadlines
        in_time = partial(in_time_of, deadlines=deadlines, as_of_ms=self.as_of_ms) if deadlines else None
        plain = None if self.plain is None else self.plain.cells
        return [verdicts, runs, *figures_of(told, plain, folder, self.ways, in_time), repeats]

    def _with_evidence(self, shown: DataFrame, judged: DataFrame, told: DataFrame) -> DataFrame:
        of = self.ways.keep(in_question(told))
        heard = judged.select("worker", "last_ms")
        heard = heard if self.plain is None else heard.unionByName(self.plain.heard.select(*heard.columns))
        return with_histories(advised(shown, heard), self.ways.sent(of), self.inputs.all_events(of))

    def _write_state(self, state: State, judged: DataFrame) -> Figures:
        """Write the state for the next run; it is not the current one before it is committed."""
        # A wrong clock or a mistyped `as_of_ms` may name a time to come. A state that forgot the days before would not read them.
        looked_ms = self._looked_ms()
        reached_ms = self.as_of_ms if looked_ms is None else min(self.as_of_ms, looked_ms)
        lives = to_hold(judged, self.lives.columns, self.ways.sent, as_of_ms=reached_ms, keep_ms=self.books.keep_ms)
        run = self.inputs.next_run(self.facts["watermark_ms"]).forgetting(reached_ms, self.books.keep_ms)
        self.left = state.write(run, lives, about=self.facts["lives"] + self.facts["left_open"])
        return Figures()


def _checked_output(files: Files, books: Books) -> str:
    inputs = {"outcomes": books.outcomes, "inventory": books.inventory}
    if books.state is not None:
        check_apart(files, books.state, inputs, "state")
        inputs["state"] = books.state
    return check_output(files, books.output, inputs)


def _look(lives: DataFrame, plain: SortedOut | None, books: Books, inputs: Inputs) -> dict[str, Any]:
    """One query over all lives, which fills the cache: the facts that decide the next steps, and a check of the rows."""
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
    events = inputs.events if inputs.all_told is None else inputs.all_told
    if facts.get("broken"):
        told = f"{facts['broken']} rows have no task_id, event_id or at_ms that can be used: these are not outcome events"
        msg = f"{books.outcomes}: {told}; {_one(events, IS_BROKEN)}"
    elif facts.get("unknown"):
        told = f"{facts['unknown']} rows have an unknown outcome: a newer version may have written them"
        msg = f"{books.outcomes}: {told}; {_one(events, IS_UNKNOWN)}"
    elif facts.get("misplaced"):
        told = f"{facts['misplaced']} rows have no task_id, seen_ms or known place: this is not an inventory"
        msg = f"{books.inventory}: {told}; {_one(inputs.inventory, IS_MISPLACED)}"
    elif not facts.get("events") and not (inputs.base and inputs.base.version):
        msg = f"{books.outcomes} holds no outcome events: export them first, or look at the path"
    else:
        return facts
    raise InputError(msg)


def _one(rows: DataFrame, holds: str) -> str:
    """Names one of the rows for which this holds."""
    found = rows.where(holds).selectExpr("coalesce(task_id, '') AS task_id", "input_file_name() AS file").head(1)
    return " and ".join(f"one is of task {each.task_id!r}, in {each.file}" for each in found)
