"""The books on handwritten histories: every verdict, and every count. One run of the job serves all tests here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.reconciliation.rules import DISCREPANCIES, RULES, VERDICTS
from tests.support.books.spark_session import NOON, Histories, Row, rows, spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")

HOUR = 3_600_000
DIED = ("dead_lettered", {"delivery": 1, "attempt": 1, "reason": "exhausted"})
SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})
AGAIN = ("redelivery_scheduled", {"delivery": 1, "attempt": 1})

#: task id → the verdict of its generation 0, and of later ones as `task id/generation`.
EXPECTED = {
    "first-time": "balanced",
    "after-redelivery": "balanced",
    "reordered": "balanced",
    "exported-twice": "balanced",
    "kept": "balanced",
    "kept-then-purged": "balanced",
    "kept-then-discarded": "balanced",
    "redriven": "balanced",
    "redriven/1": "balanced",
    "moved": "balanced",
    "moved/1": "balanced",
    "unannounced": "balanced",
    "no-queue": "balanced",
    "cancelled-by-an-operator": "balanced",
    "run-by-its-own-strategy": "balanced",
    "run-by-its-own-strategy-twice": "duplicated",
    "replaced": "balanced",
    "two-queues": "balanced",
    "two-queues@mail": "lost",
    "orphan": "orphaned",
    "ended-twice": "duplicated",
    "died-and-succeeded": "duplicated",
    "purged-twice": "duplicated",
    "back-again": "resurrected",
    "ended-and-crashed": "duplicated",
    "ended-and-crashed-just-now": "resurrected",
    "crashed-and-copied": "duplicated",
    "copy-that-failed": "resurrected",
    "closed-since": "balanced",
    "letter-of-a-success": "phantom_dead_letter",
    "letter-of-the-purged": "phantom_dead_letter",
    "letter-of-nobody": "phantom_dead_letter",
    "letter-gone": "missing_dead_letter",
    "other-queue-redriven": "balanced",
    "other-queue-redriven/1": "balanced",
    "other-queue-redriven@mail": "missing_dead_letter",
    "young-letter-gone": "balanced",
    "overdue": "stuck",
    "owner-gone": "stuck",
    "waiting": "in_flight",
    "running": "in_flight",
    "queued": "in_flight",
    "young": "in_flight",
    "only-in-the-broker": "in_flight",
    "vanished": "lost",
    "held-and-gone": "lost",
    "redriven-again": "balanced",
    "redriven-again/1": "balanced",
    "redriven-again-and-vanished": "balanced",
    "redriven-again-and-vanished/1": "lost",
    "redriven-and-vanished": "balanced",
    "redriven-and-vanished/1": "lost",
    "published-twice": "lost",
    "restored": "balanced",
    "crashed": "balanced",
}


def _balanced(histories: Histories) -> None:
    histories.add("first-time", "published", SUCCEEDED)
    histories.add("after-redelivery", "published", AGAIN, ("succeeded", {"delivery": 2, "attempt": 2}))
    histories.add("reordered", SUCCEEDED, "published")
    histories.add("exported-twice", "published", SUCCEEDED)
    histories.events += histories.events[-2:]
    histories.add("kept", "published", DIED)
    histories.hold("kept", "dead_letter")
    histories.add("closed-since", "published", DIED, "purged")
    histories.hold("closed-since", "dead_letter", seen_ms=NOON + 1500)
    histories.add("kept-then-purged", "published", DIED, "purged")
    histories.add("kept-then-discarded", "published", DIED, ("discarded", {"reason": "operator"}))
    histories.add("unannounced", ("received", {"reason": "unannounced", "delivery": 1}), SUCCEEDED)
    histories.add("no-queue", "published", (*SUCCEEDED[:1], {**SUCCEEDED[1], "queue": ""}))
    histories.add("run-by-its-own-strategy", "published", ("unobserved", {"delivery": 1, "attempt": 1}))
    histories.add("run-by-its-own-strategy-twice", "published", ("unobserved", {"delivery": 1}), ("unobserved", {"delivery": 1}))
    histories.add("cancelled-by-an-operator", "published", ("redelivery_scheduled", {"delivery": 3}), "cancelled")
    histories.add("replaced", "published", ("ignored", {"delivery": 1}))
    histories.add("replaced", "published", SUCCEEDED, nesting=1)
    histories.add("restored", "published", ("received", {"delivery": 2, "reason": "redelivered"}), ("succeeded", {"delivery": 2}))
    histories.add(
        "crashed", "published", (AGAIN[0], {**AGAIN[1], "reason": "worker_lost"}), ("succeeded", {"delivery": 2, "attempt": 2})
    )


def _redriven(histories: Histories) -> None:
    histories.add("redriven", "published", DIED)
    histories.add("redriven", "redriven", SUCCEEDED, generation=1, start_ms=NOON + 60_000)
    histories.add("moved", "published", DIED)
    histories.add("moved", "redriven", SUCCEEDED, generation=1, queue="repairs")
    histories.add("redriven-and-vanished", "published", DIED)
    histories.add("redriven-and-vanished", "redriven", generation=1)
    # A redrive that died after it had published; the next redrive records it again.
    histories.add("redriven-again", "published", DIED)
    histories.add("redriven-again", "redriven", "redriven", SUCCEEDED, generation=1)
    histories.add("redriven-again-and-vanished", "published", DIED)
    histories.add("redriven-again-and-vanished", "redriven", "redriven", generation=1)
    for queue in ("orders", "mail"):
        histories.add("other-queue-redriven", "published", DIED, queue=queue)
    histories.add("other-queue-redriven", "redriven", SUCCEEDED, generation=1)


def _wrong(histories: Histories) -> None:
    histories.add("two-queues", "published", SUCCEEDED)
    histories.add("two-queues", "published", queue="mail")
    histories.add("orphan", SUCCEEDED)
    histories.add("ended-twice", "published", SUCCEEDED, ("succeeded", {"delivery": 2}))
    histories.add("died-and-succeeded", "published", DIED, ("succeeded", {"delivery": 2}))
    histories.hold("died-and-succeeded", "dead_letter")
    histories.add("purged-twice", "published", DIED, "purged", "purged")
    histories.add("back-again", "published", SUCCEEDED, ("redelivery_scheduled", {"delivery": 2}))
    histories.add("copy-that-failed", "published", SUCCEEDED, AGAIN)
    lost = (AGAIN[0], {**AGAIN[1], "reason": "worker_lost"})
    histories.add("ended-and-crashed", "published", SUCCEEDED, lost, ("succeeded", {"delivery": 2, "attempt": 2}))
    histories.add("ended-and-crashed-just-now", "published", SUCCEEDED, lost)
    histories.add("crashed-and-copied", "published", lost, *[("succeeded", {"delivery": 2, "attempt": 2})] * 2)
    histories.add("letter-of-a-success", "published", SUCCEEDED)
    histories.hold("letter-of-a-success", "dead_letter")
    histories.add("letter-of-the-purged", "published", DIED, "purged")
    histories.hold("letter-of-the-purged", "dead_letter")
    histories.hold("letter-of-nobody", "dead_letter")
    histories.add("letter-gone", "published", DIED)
    histories.add("vanished", "published", AGAIN)
    histories.add("held-and-gone", ("received", {"reason": "unannounced", "delivery": 1, "worker": "w1@shop"}))
    histories.add("published-twice", "published", "published", SUCCEEDED)


def _open(histories: Histories) -> None:
    histories.add("young-letter-gone", "published", DIED, start_ms=NOON + HOUR - 300_000)
    histories.add("overdue", "published", AGAIN)
    histories.hold("overdue", "delayed", due_ms=NOON + HOUR - 600_001)
    histories.add("waiting", "published", AGAIN)
    histories.hold("waiting", "delayed", due_ms=NOON + HOUR - 600_000)
    histories.add("owner-gone", "published")
    histories.hold("owner-gone", "unacked", owner="")
    histories.add("running", "published")
    histories.hold("running", "unacked", owner="5d0e")
    histories.add("queued", "published")
    histories.hold("queued", "queue")
    histories.add("young", "published", start_ms=NOON + HOUR - 599_999)
    histories.hold("only-in-the-broker", "queue")


@dataclass
class Run:
    """What one run of the job left."""

    folder: Path
    summary: Summary
    histories: Histories

    def verdicts(self) -> dict[str, Row]:
        """The verdict rows by life, named as in `EXPECTED`."""
        named = {}
        for row in rows(self.folder, "verdicts"):
            name = row["task_id"] + (f"/{row['generation']}" if row["generation"] else "")
            named[name + ("@mail" if row["queue"] == "mail" else "") + ("+" if row["nesting"] else "")] = row
        return named


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All histories of this module, reconciled once."""
    histories, folder = Histories(), tmp_path_factory.mktemp("books")
    for add in (_balanced, _redriven, _wrong, _open):
        add(histories)
    return Run(folder, histories.reconcile(spark, folder, all_lives=True), histories)


@pytest.mark.parametrize("life", EXPECTED)
def test_each_life_has_the_verdict_of_the_first_rule_that_holds(run: Run, life: str) -> None:
    """One history for each course that a life can take."""
    row = run.verdicts()[life]
    assert row["verdict"] == EXPECTED[life], row
    assert row["rule"] == RULES[EXPECTED[life]]


def test_no_life_is_judged_that_nobody_told(run: Run) -> None:
    """The replaced task has two lives; all others are in the table above."""
    assert set(run.verdicts()) == EXPECTED.keys() | {"replaced+"}


def test_the_summary_counts_what_was_told(run: Run) -> None:
    """Every number of the summary follows from the histories; an event that was exported twice counts once."""
    summary = run.summary
    outcomes = {event["event_id"]: event["outcome"] for event in run.histories.events}
    assert summary.events == len(outcomes)
    assert summary.outcomes == {name: list(outcomes.values()).count(name) for name in summary.outcomes}
    expected = [*EXPECTED.values(), "balanced"]
    assert summary.verdicts == {name: expected.count(name) for name in VERDICTS}
    assert (summary.lives, summary.balanced, summary.gaps, summary.unannounced) == (len(expected), False, [], 2)
    assert summary.as_of_ms == NOON + HOUR


def test_the_summary_is_written_as_it_is_returned(run: Run) -> None:
    """`summary.json` has the keys that programs rely on."""
    written = json.loads((run.folder / "books" / "summary.json").read_text(encoding="utf-8"))
    assert written == run.summary.to_dict()
    assert written.keys() >= {"balanced", "as_of_ms", "events", "lives", "verdicts", "outcomes", "possible_repeats", "gaps"}


def test_what_was_handed_over_again_without_a_redelivery_of_ours_is_a_possible_repeat(run: Run) -> None:
    """A lost worker, a message that the broker restored, and two ends; an ordinary redelivery is none."""
    repeats = {row["task_id"] for row in rows(run.folder, "repeats")}
    twice = {"ended-twice", "died-and-succeeded", "purged-twice", "run-by-its-own-strategy-twice"}
    assert repeats == {"crashed", "restored", *twice, "ended-and-crashed", "ended-and-crashed-just-now", "crashed-and-copied"}
    assert run.summary.possible_repeats == len(repeats)


@pytest.mark.parametrize(
    ("task_id", "is_crash"),
    [
        ("ended-and-crashed", True),
        ("ended-and-crashed-just-now", True),
        ("crashed-and-copied", False),
        ("ended-twice", False),
        ("back-again", False),
    ],
)
def test_a_crash_that_the_history_holds_is_named_as_the_cause(run: Run, task_id: str, *, is_crash: bool) -> None:
    """Only a crash after the end that it undid; an earlier crash is not the cause of a later copy."""
    row = run.verdicts()[task_id]
    said = "a worker died, or lost its connection, after it had recorded an end and before it acknowledged the message"
    assert (said in row["cause"]) is is_crash
    assert ("visibility timeout" in row["cause"]) is (not is_crash and row["verdict"] == "duplicated")


def test_a_verdict_comes_with_what_is_known(run: Run) -> None:
    """The last event, its reason, attempt and time, and whether the broker has the message."""
    row = run.verdicts()["letter-gone"]
    said = "last event: dead_lettered (exhausted) at attempt 1 at 2026-01-31 12:00:01.000 UTC; the broker does not have it"
    assert row["cause"] == f"{said}; likely removed without `redelivery dlq`: by LREM, DEL, an eviction or a consumer"
    assert (row["task"], row["first_ms"], row["last_ms"], row["events"]) == ("shop.charge", NOON, NOON + 1000, 2)
    nobody = run.verdicts()["letter-of-nobody"]["cause"]
    assert nobody.startswith("no event names it; the broker has it in dead letter; likely put there without `redelivery dlq`")
    assert "published 2 times under one id, and ended less often" in run.verdicts()["published-twice"]["cause"]
    held = run.verdicts()["held-and-gone"]["cause"]
    assert "held by w1@shop, which was last heard of at 2026-01-31 12:00:00 UTC: lost between its hand-over and its end" in held


def test_a_discrepancy_comes_with_its_events_in_order_and_with_what_to_do(run: Run) -> None:
    """In the order in which they were judged, each once, with an operator's next step; a balanced life has none."""
    judged = run.verdicts()
    history = [(step["outcome"], step["delivery"], step["reason"]) for step in judged["died-and-succeeded"]["history"]]
    assert history == [("published", 0, ""), ("dead_lettered", 1, "exhausted"), ("succeeded", 2, "")]
    assert [step["outcome"] for step in judged["copy-that-failed"]["history"]] == ["published", "redelivery_scheduled", "succeeded"]
    assert all(
        row["advice"] and (row["history"] or not row["events"]) for row in judged.values() if row["verdict"] in DISCREPANCIES
    )
    assert (judged["reordered"]["history"], judged["reordered"]["advice"], judged["waiting"]["history"]) == (None, None, None)


def test_a_row_of_the_metrics_adds_up(run: Run) -> None:
    """By queue, task and the day on which the lives began."""
    mail = next(row for row in rows(run.folder, "metrics") if row["queue"] == "mail")
    expected = {"lives": 2, "published": 2, "dead_lettered": 1, "discrepancies": 2, "succeeded_at_first_attempt": 0}
    assert mail | expected == mail
    assert dict(mail["dead_lettered_by_reason"]) == {"exhausted": 1}
    orders = next(row for row in rows(run.folder, "metrics") if row["queue"] == "orders")
    assert orders["succeeded_after_redelivery"] == 4
    assert orders["day"].isoformat() == "2026-01-31"


def test_the_table_for_people_names_every_verdict(run: Run) -> None:
    """Its last line says whether the books balance."""
    table = run.summary.to_table()
    assert all(name in table for name in VERDICTS)
    assert table.endswith("The books DO NOT BALANCE.")


def test_only_in_flight_and_balanced_are_no_discrepancies() -> None:
    """With any of the other seven verdicts the books do not balance."""
    assert set(VERDICTS) - set(DISCREPANCIES) == {"in_flight", "balanced"}
