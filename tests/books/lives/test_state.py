"""The books, kept day by day: one run closes the lives that an earlier run left open; together they equal one run over all."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from redelivery.errors import InputError
from redelivery.workers.reconciliation.inputs.state import Run, State
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.outputs.pages import page_of
from redelivery.workers.reconciliation.spark.files import Files
from tests.books.lives.test_oracle import ENDS, opinion, random_histories
from tests.support.books.spark_session import NOON, Histories, Row, rows, spark, write_lines
from tests.support.lanes import first_quick

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["parts_of", "spark"]

pytestmark = [pytest.mark.xdist_group("spark-days"), pytest.mark.timeout(1800)]

HOUR = 3_600_000
Life = tuple[str, int, int, str]
SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})
DIED = ("dead_lettered", {"delivery": 1, "attempt": 1, "reason": "exhausted"})


@dataclass
class Ledger:
    """Books in a folder, kept run by run; `said` has each run's summary and its verdicts by life.

    `histories` are the histories of all runs.
    """

    spark: SparkSession
    folder: Path
    said: list[tuple[Summary, dict[Life, Row]]] = field(default_factory=list)
    histories: Histories = field(default_factory=Histories)

    def arrive(self, hour: int, events: list[Row]) -> None:
        """Write new events as a file."""
        write_lines(self.folder / "outcomes" / "date=2026-01-31" / f"hour={hour:02}" / "outcomes.jsonl", events)

    def run(self, inventory: list[Row], **options: Any) -> Summary:
        """Take the inventory, and reconcile."""
        write_lines(self.folder / "inventory" / "inventory.jsonl", inventory)
        places = {name: str(self.folder / name) for name in ("outcomes", "inventory", "state")}
        summary = reconcile(self.spark, Books(output=str(self.folder / "books"), all_lives=True, **{**places, **options}))
        found = rows(self.folder, "verdicts")
        assert page_of(str(self.folder / "books"), limit=1).total == len(found), "each run's books can be looked at"
        self.said.append((summary, {life_of(row): row for row in found}))
        return summary


def life_of(row: Row) -> Life:
    """The life to which a row belongs."""
    return row["task_id"], row["nesting"], row["generation"], row["queue"]


def hand_made(histories: Histories) -> tuple[list[Row], list[Row]]:
    """Histories with a known end, added to the others: their events in the first part, and in the second."""
    start = len(histories.events)
    histories.add("ends-later", "published")
    histories.add("letter", "published", DIED)
    histories.add("late-end", "published")
    histories.add("late-second-end", "published", SUCCEEDED)
    histories.add("exported-again", "published", SUCCEEDED)
    histories.add("lost-for-good", "published")
    first, middle = histories.events[start:], len(histories.events)
    histories.add("ends-later", SUCCEEDED, start_ms=NOON + HOUR * 5 // 6)
    histories.add("letter", "redriven", SUCCEEDED, generation=1, start_ms=NOON + HOUR * 5 // 6)
    histories.add("late-end", SUCCEEDED, start_ms=NOON + 500)
    histories.add("late-second-end", ("succeeded", {"delivery": 2}), start_ms=NOON + 700)
    for event in histories.events[start:]:
        for name in ("nesting", "generation", "delivery"):
            event.setdefault(name, 0)
    again = [event for event in first if event["task_id"] == "exported-again"]
    return first, [*histories.events[middle:], *again]


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Two parts, reconciled one after the other; the second once more; and a run long after."""
    chance = random.Random(5)  # noqa: S311 - a seed makes it repeatable
    ledger, histories = Ledger(spark, tmp_path_factory.mktemp("ledger")), random_histories(chance, 150)
    _without_copies_of_what_ended(histories)
    at_random, mine = parts_of(histories.events, chance), hand_made(histories)
    held = Histories()
    held.hold("ends-later", "queue")
    held.hold("letter", "dead_letter")
    inventories = [histories.inventory[::2] + held.inventory, histories.inventory]
    for number in range(2):
        ledger.arrive(12 + number, at_random[number] + mine[number])
        ledger.run(inventories[number], as_of_ms=NOON + HOUR * (number + 1) // 2)
    ledger.run(inventories[1], as_of_ms=NOON + HOUR)
    ledger.histories = histories
    ledger.run([], as_of_ms=NOON + 80 * 24 * HOUR)
    return ledger


@pytest.mark.full
@pytest.mark.slow
def test_runs_over_parts_say_together_what_one_run_over_all_says(ledger: Ledger) -> None:
    """Random histories in two parts, with late and repeated events in the second: each life's last verdict is that of the whole.

    The verdicts of one run over all come from the second opinion, with which such a run agrees (`test_oracle.py`).
    """
    (_, first), (_, second), *_ = ledger.said
    last = {life: row["verdict"] for life, row in (first | second).items()}
    whole = opinion(ledger.histories)
    assert {life: (last.get(life), verdict) for life, verdict in whole.items() if last.get(life) != verdict} == {}
    assert len(whole) > 150


def test_each_event_is_counted_once(ledger: Ledger) -> None:
    """An event in a file that was read before, or that was exported again, counts in the run that saw it first."""
    (first, _), (second, _), _, (after, _) = ledger.said
    outcomes = list({event["event_id"]: event["outcome"] for event in ledger.histories.events}.values())
    assert first.events + second.events == len(outcomes)
    assert {name: count + second.outcomes[name] for name, count in first.outcomes.items()} == {
        name: outcomes.count(name) for name in first.outcomes
    }
    assert after.events == 0


def test_the_last_run_repeated_gives_the_same_books(ledger: Ledger) -> None:
    """It starts from the state from which that run started."""
    _, (second, rows_then), (again, rows_now), _ = ledger.said
    assert (again, rows_now) == (second, rows_then)


def test_an_open_life_is_carried_over_and_closed_when_it_ends(ledger: Ledger) -> None:
    """Its end is in a file without its publication; and the redrive of a dead letter finds the dead letter's life."""
    (_, first), (_, second), *_ = ledger.said
    life, letter = ("ends-later", 0, 0, "orders"), ("letter", 0, 0, "orders")
    assert (first[life]["verdict"], second[life]["verdict"], second[life]["events"]) == ("in_flight", "balanced", 2)
    assert (first[letter]["verdict"], second[letter]["verdict"], second[letter]["was"]) == ("balanced", "balanced", None)


def test_a_late_event_corrects_a_settled_life_and_says_so(ledger: Ledger) -> None:
    """A lost life has ended, or a balanced one has ended twice: both are marked with their earlier verdict."""
    (summary, verdicts) = ledger.said[1]
    corrected = {
        life[0]: (row["was"], row["verdict"], [step["outcome"] for step in row["history"]])
        for life, row in verdicts.items()
        if life[0].startswith("late-")
    }
    assert corrected == {
        "late-end": ("lost", "balanced", ["published", "succeeded"]),
        "late-second-end": ("balanced", "duplicated", ["published", "succeeded", "succeeded"]),
    }
    assert summary.corrections == len([row for row in verdicts.values() if row["was"]])


def test_a_discrepancy_is_reported_once_and_stands_from_then_on(ledger: Ledger) -> None:
    """The second run does not report it again, but still counts it."""
    (_, first), (summary, second), *_ = ledger.said
    life = "lost-for-good", 0, 0, "orders"
    assert first[life]["verdict"] == "lost"
    assert life not in second
    assert summary.standing["lost"] >= 1


def test_what_is_old_is_forgotten_and_one_earlier_version_is_kept(ledger: Ledger) -> None:
    """Reported discrepancies go in the end, files of those days count as read, and nothing piles up."""
    state = ledger.folder / "state"
    assert sorted(each.name for each in state.glob("v*")) == ["v00000002", "v00000003"]
    before, after = (json.loads((state / name / "run.json").read_text()) for name in ("v00000002", "v00000003"))
    assert (len(before["read"]), after["read"], after["forgotten"]) == (2, {}, "2026-03-17")
    assert before["lives"] > after["lives"]


def _without_copies_of_what_ended(histories: Histories) -> None:
    """A copy of a settled task's message is in flight for a run without its events, and nothing for a run with all events."""
    ended = {event["task_id"] for event in histories.events if event["outcome"] in ENDS}
    histories.inventory = [row for row in histories.inventory if row["place"] == "dead_letter" or row["task_id"] not in ended]


def parts_of(events: list[Row], chance: random.Random) -> list[list[Row]]:
    """Split by time, but a twentieth of the events comes late, and another twentieth comes again.

    All opening events of a life stay together: an id that is published again after its life was settled is a new life to such a
    run.
    """
    parts: list[list[Row]] = [[], []]
    opened: dict[tuple[Any, ...], int] = {}
    for event in sorted(events, key=lambda each: each["at_ms"]):
        ms = event["at_ms"] - NOON
        number = 0 if ms <= 1000 else 1
        if event["outcome"] in {"published", "redriven"}:
            number = opened.setdefault((event["task_id"], event.get("nesting"), event.get("generation")), number)
        elif chance.random() < 0.05:
            number = 1
        parts[number].append(event)
        if chance.random() < 0.05:
            parts[chance.randint(number, 1)].append(event)
    for part in parts:
        chance.shuffle(part)
    return parts


def test_a_state_of_somebody_elses_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """So is a state within the inputs or around the output, a broken one, and one of a newer version."""
    histories = Histories()
    histories.add("a", "published", SUCCEEDED)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("1")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "current.json").write_text("{")
    for name, current, run in (
        ("list", "[]", ""),
        ("versionless", "{}", ""),
        ("named", '{"version": "one"}', ""),
        ("run", '{"version": 1}', "[]"),
        ("typed", '{"version": 1}', '{"format": 1, "read": [], "commits": null}'),
    ):
        (tmp_path / name / "v00000001").mkdir(parents=True)
        (tmp_path / name / "current.json").write_text(current)
        (tmp_path / name / "v00000001" / "run.json").write_text(run)
    (tmp_path / "newer" / "v00000001").mkdir(parents=True)
    (tmp_path / "newer" / "current.json").write_text(json.dumps({"version": 1, "format": 1}))
    (tmp_path / "newer" / "v00000001" / "run.json").write_text(json.dumps({"version": 1, "format": 1, "said_since": True}))
    for state, said in {
        "thesis": "is not empty, and not a state",
        "outcomes/state": "lie within each other",
        "books/state": "lie within each other",
        "broken": r"current\.json is broken: it is not JSON .*Restore it",
        "list": r"current\.json is broken: it is not an object\. Restore it",
        "versionless": r"current\.json is broken: it has no version\. Restore it",
        "named": r"current\.json is broken: it has no version",
        "run": r"v00000001/run\.json is broken: it is not an object",
        "typed": r"v00000001/run\.json is broken: wrong values of read, commits",
        "newer": "was written by another version of redelivery",
    }.items():
        with pytest.raises(InputError, match=said):
            histories.reconcile(spark, tmp_path, state=str(tmp_path / state))
    assert not (tmp_path / "books").exists()


@pytest.mark.full
def test_files_that_are_named_one_by_one_are_each_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """A file without a date is known by its name. What has that name and other contents is refused, and not left unread."""
    histories = Histories()
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    for day in (1, 2):
        each, file = Histories(), tmp_path / f"day-{day}.jsonl"
        each.add(f"lost-{day}", "published")
        each.hold("held", "queue", seen_ms=NOON + day * HOUR)
        write_lines(file, each.events)
        write_lines(tmp_path / "inventory" / "inventory.jsonl", each.inventory)
        summary = reconcile(spark, replace(books, outcomes=str(file)))
        assert (summary.events, summary.verdicts["lost"], summary.standing) == (1, 1, {} if day == 1 else {"lost": 1})
    grown = tmp_path / "day-2.jsonl"
    grown.write_text(grown.read_text() * 2)
    with pytest.raises(InputError, match=r"day-2\.jsonl has \d+ bytes, and an earlier run read \d+ bytes under this name"):
        reconcile(spark, replace(books, outcomes=str(grown)))


def test_a_state_that_has_lost_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Else its open lives would be forgotten, and nobody would hear of those that are lost."""
    histories = Histories()
    histories.add("open", "published")
    histories.hold("open", "queue")
    state = tmp_path / "state"
    histories.reconcile(spark, tmp_path, state=str(state))
    later = Histories()
    later.add("b", "published", SUCCEEDED, start_ms=NOON + HOUR)
    write_lines(tmp_path / "outcomes" / "date=2026-01-31" / "hour=13" / "outcomes.jsonl", later.events)
    for place in ("lives/*.parquet", "lives"):
        for each in (state / "v00000001").glob(place):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        with pytest.raises(InputError, match="/lives is broken: it has 0 lives, and 1 were written"):
            reconcile(spark, histories.write(tmp_path, state=str(state)))


@pytest.mark.full
def test_a_run_that_dies_while_it_writes_the_trend_is_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a trend is not read."""
    histories = Histories()
    histories.add("open", "published")
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    histories.hold("open", "queue")
    histories.write(tmp_path)
    reconcile(spark, books)
    whole, state = Files.write, str(tmp_path / "state")

    def died(files: Files, uri: str, text: str) -> None:
        whole(files, uri, text[:5] if "trend" in uri and state in uri else text)
        if "trend" in uri and state in uri:
            raise KeyboardInterrupt

    monkeypatch.setattr(Files, "write", died)
    with pytest.raises(KeyboardInterrupt):
        reconcile(spark, books)
    monkeypatch.undo()
    assert reconcile(spark, books).verdicts["in_flight"] == 1


@pytest.mark.full
def test_a_repetition_that_dies_leaves_the_state_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated run made the current state, and there is no other with its lives."""
    histories = Histories()
    histories.add("open", "published")
    histories.hold("open", "queue")
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    first = reconcile(spark, books)

    def died(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Files, "write", died)
    with pytest.raises(KeyboardInterrupt):
        reconcile(spark, books)
    monkeypatch.undo()
    again = reconcile(spark, books)
    assert (again.verdicts, again.lives) == (first.verdicts, first.lives)


@pytest.mark.full
def test_a_quiet_day_has_books_too(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is open, no event is new, and the broker is empty; a gap that is new is told once."""
    histories = Histories()
    histories.add("a", "published", SUCCEEDED)
    histories.hold("b", "queue")
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    write_lines(tmp_path / "inventory" / "inventory.jsonl", [])
    taken = tmp_path / "inventory" / "_taken.json"
    gaps = []
    for day in range(3):
        taken.write_text(json.dumps({"seen_ms": NOON + (1 + (day > 0)) * HOUR}))
        if day == 2:
            write_lines(tmp_path / "outcomes" / "_gaps.jsonl", [{"after": "1-0", "lost": 7}])
        summary = reconcile(spark, books)
        assert (summary.events, summary.verdicts["balanced"]) == ((0, 0) if day else (2, 1))
        gaps.append(len(summary.gaps))
    taken.write_text(json.dumps({"seen_ms": NOON + 9 * HOUR}))
    assert [*gaps, len(reconcile(spark, books).gaps)] == [0, 0, 1, 0]


def test_of_two_runs_that_began_with_one_state_the_second_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It does not touch what the first one has written."""
    histories = Histories()
    histories.add("open", "published")
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    late = State(spark, Files(spark), str(tmp_path / "state"))
    reconcile(spark, books)
    files = sorted((tmp_path / "state" / "v00000001").rglob("*"))
    with pytest.raises(InputError, match="another run changed the state meanwhile; nothing is lost"):
        late.write(Run(version=1), spark.range(1), about=1)
    with pytest.raises(InputError, match="another run changed the state meanwhile; nothing is lost"):
        late.commit(Run(version=1))
    assert sorted((tmp_path / "state" / "v00000001").rglob("*")) == files


@pytest.mark.full
def test_a_state_whose_name_was_on_its_way_is_not_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """Without an atomic rename, the old name is removed first: a run that died then has left the new state beside it."""
    histories = Histories()
    histories.add("a", "published")
    histories.hold("a", "queue")
    state = tmp_path / "state"
    state.mkdir()
    (state / ".current.json.new").write_text("{")  # a first run that died while it wrote it
    assert histories.reconcile(spark, tmp_path, state=str(state)).verdicts["in_flight"] == 1
    (state / "current.json").rename(state / ".current.json.new")
    later = Histories()
    later.add("a", SUCCEEDED, start_ms=NOON + HOUR)
    write_lines(tmp_path / "outcomes" / "date=2026-01-31" / "hour=13" / "outcomes.jsonl", later.events)
    again = reconcile(spark, histories.write(tmp_path, state=str(state)))
    assert (again.events, again.verdicts["balanced"], again.lives) == (1, 1, 1)
    assert sorted(each.name for each in state.glob("v*")) == ["v00000001", "v00000002"]
    assert not (state / ".current.json.new").exists()


@pytest.mark.full
def test_a_state_from_before_an_outcome_was_known_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """It has no column for that outcome: none of its lives had it; a life that gets it now balances, and none is lost."""
    histories = Histories()
    for task in ("waits", "ends", "is gathered"):
        histories.add(task, "published", "deferred")
        histories.hold(task, "queue")
    state = tmp_path / "state"
    histories.reconcile(spark, tmp_path, state=str(state))
    for file in (state / "v00000001" / "lives").glob("*.parquet"):
        table = parquet.read_table(file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        parquet.write_table(table.drop_columns(["unobserved"]), file)
    later = Histories()
    later.add("ends", SUCCEEDED, start_ms=NOON + HOUR)
    later.add("is gathered", ("unobserved", {"delivery": 1, "attempt": 1}), start_ms=NOON + HOUR)
    later.hold("waits", "queue")
    write_lines(tmp_path / "outcomes" / "date=2026-01-31" / "hour=13" / "outcomes.jsonl", later.events)
    histories.inventory = later.inventory
    again = reconcile(spark, histories.write(tmp_path, state=str(state)))
    assert (again.verdicts["balanced"], again.verdicts["in_flight"], again.lives) == (2, 1, 3)
    assert (again.outcomes["unobserved"], again.outcomes["succeeded"]) == (1, 1)


@pytest.mark.parametrize("announced_ms", first_quick([NOON, NOON + 700 * 24 * HOUR]), ids=["by-as-of", "by-a-wrong-clock"])
def test_a_time_to_come_makes_a_state_forget_no_day(spark: SparkSession, tmp_path: Path, announced_ms: int) -> None:
    """Else the files of all later days count as read, and their events are never counted."""
    histories = Histories()
    histories.add("a", "published", SUCCEEDED, start_ms=announced_ms)
    to_come = None if announced_ms > NOON else NOON + 700 * 24 * HOUR
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": NOON + HOUR}))
    books = histories.write(tmp_path, state=str(tmp_path / "state"))
    reconcile(spark, replace(books, as_of_ms=to_come))
    later = Histories()
    later.add("b", "published", start_ms=NOON + 24 * HOUR)
    write_lines(tmp_path / "outcomes" / "date=2026-02-01" / "hour=12" / "outcomes.jsonl", later.events)
    assert reconcile(spark, replace(books, as_of_ms=NOON + 48 * HOUR)).events == 1


def test_a_run_forgets_whole_days_and_does_not_remember_them_again() -> None:
    """The first day that is kept stays whole; files without a date are kept; a shorter memory later changes nothing."""
    read = {f"date=2026-01-{day}/hour=00/x.parquet": f"file:/{day}" for day in (29, 30, 31)} | {"x.jsonl": "file:/x.jsonl"}
    run = Run(read=read, commits=["2026-01-29/a.json", "2026-01-30/b.json"])
    left = run.forgetting(NOON, 24 * HOUR)
    assert sorted(left.read.values()) == ["file:/30", "file:/31", "file:/x.jsonl"]
    assert (left.commits, left.forgotten) == (["2026-01-30/b.json"], "2026-01-30")
    assert left.forgetting(NOON, 90 * 24 * HOUR).forgotten == "2026-01-30"
    assert left.forgotten_ms == NOON - 36 * HOUR


@pytest.mark.parametrize(("as_of_ms", "keep_ms"), [(NOON, 10**15), (-62_135_596_800_000, 1)])
def test_a_state_forgets_nothing_if_it_keeps_more_than_there_was(as_of_ms: int, keep_ms: int) -> None:
    """Python has no date before the year 1."""
    run = Run(version=1, read={"date=2026-01-30/x": "a"}, commits=["2026-01-30/c"])
    assert run.forgetting(as_of_ms, keep_ms) == replace(run, forgotten="1970-01-01")
