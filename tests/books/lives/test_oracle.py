"""The job against a second opinion: random histories, judged by Spark and by plain Python, which reads them event by event.

The second opinion shares only the names of the verdicts with the job. It sorts a life's events and walks along them, while the job
counts and compares extremes.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.support.books.spark_session import NOON, Histories, Row, rows, spark
from tests.support.lanes import seed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.xdist_group("spark")

HOUR = 3_600_000
GRACE = 600_000
TASKS = 1500
ORDER = ["published", "redriven", "received", "deferred", "redelivery_scheduled"]
ENDS = ["ignored", "revoked", "cancelled", "expired", "succeeded", "dead_lettered", "discarded", "purged", "unobserved"]
PLACES = ("queue", "unacked", "delayed", "dead_letter")
Life = tuple[str, int, int, str]


def test_spark_and_plain_python_agree_on_random_histories(spark: SparkSession, tmp_path: Path) -> None:
    """Histories of any shape, events in any order and exported more than once; each verdict occurs many times."""
    histories = random_histories(random.Random(seed()), TASKS)  # noqa: S311 - a seed makes it repeatable
    histories.reconcile(spark, tmp_path, all_lives=True, grace_ms=GRACE, as_of_ms=NOON + HOUR)
    judged = {
        (row["task_id"], row["nesting"], row["generation"], row["queue"]): row["verdict"] for row in rows(tmp_path, "verdicts")
    }
    expected = opinion(histories)
    differing = {
        life: (judged.get(life), expected.get(life)) for life in judged | expected if judged.get(life) != expected.get(life)
    }
    assert not differing
    counts = {verdict: list(judged.values()).count(verdict) for verdict in set(judged.values())}
    assert len(counts) == 9
    assert min(counts.values()) >= 10, counts


def random_histories(chance: random.Random, tasks: int) -> Histories:
    """So many tasks, each with one or more lives, most of them ordinary, in random order, some events twice."""
    histories = Histories()
    for number in range(tasks):
        queues = chance.choice([["orders"], ["orders"], ["orders", "mail"]])
        for generation in range(chance.choice([1, 1, 1, 2, 3])):
            for queue in queues if generation == 0 else [chance.choice(["orders", "mail", "repairs"])]:
                _live(histories, chance, f"task-{number}", generation, queue)
    histories.events += chance.sample(histories.events, tasks // 5)
    chance.shuffle(histories.events)
    return histories


def _live(histories: Histories, chance: random.Random, task_id: str, generation: int, queue: str) -> None:
    """One life: mostly an ordinary one, with some events left out, added and exchanged."""
    nesting = chance.choice([0, 0, 0, 0, 1])
    deliveries = chance.randint(1, 3)
    steps = [("redriven" if generation else "published", 0)]
    steps += [("redelivery_scheduled", number) for number in range(1, deliveries)]
    steps += [(chance.choice(["succeeded", "succeeded", "dead_lettered"]), deliveries)] * (chance.random() < 0.8)
    if chance.random() < 0.3:
        steps.append((chance.choice(ORDER + ENDS), chance.randint(0, 4)))
    if chance.random() < 0.2:
        steps.append((chance.choice(["discarded", "purged"]), chance.choice([0, deliveries])))
    if chance.random() < 0.2:
        steps.pop(chance.randrange(len(steps)))
    start = NOON + chance.choice([0, HOUR - GRACE - 1000, HOUR - GRACE + 1, HOUR - 60_000])
    histories.add(
        task_id,
        *((outcome, {"delivery": delivery}) for outcome, delivery in steps),
        start_ms=start,
        generation=generation,
        queue=chance.choice([queue] * 9 + [""]),
        nesting=nesting,
    )
    if chance.random() < 0.45:
        place = chance.choice(PLACES)
        due = NOON + HOUR - GRACE + chance.choice([-1, 0, 1]) if place == "delayed" else None
        owner = chance.choice(["", "5d0e"])
        histories.hold(task_id, place, generation=generation, queue=queue, nesting=nesting, due_ms=due, owner=owner)


def opinion(histories: Histories) -> dict[Life, str]:
    """The verdict of each life, as of an hour after noon."""
    rows_of: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in [*{event["event_id"]: event for event in histories.events}.values(), *histories.inventory]:
        rows_of[row["task_id"], row["nesting"], row["generation"]].append(row)
    lives: dict[Life, list[Row]] = defaultdict(list)
    for of_generation, rows_here in rows_of.items():
        queues = {row["queue"] for row in rows_here} - {""}
        only = next(iter(queues)) if len(queues) == 1 else ""
        for row in rows_here:
            lives[(*of_generation, row["queue"] or only)].append(row)
    return {life: _verdict(life, rows_here, lives) for life, rows_here in lives.items()}


def _verdict(life: Life, rows_here: list[Row], lives: dict[Life, list[Row]]) -> str:  # noqa: PLR0911 - the design's table, line by line
    events = sorted((row for row in rows_here if "outcome" in row), key=_place_in_life)
    held = [row for row in rows_here if "place" in row]
    words = [event["outcome"] for event in events]
    letter = any(row["place"] == "dead_letter" for row in held)
    old = not events or max(event["at_ms"] for event in events) + GRACE <= NOON + HOUR
    ends = [word for word in words if word in ENDS]
    if "dead_lettered" in ends and {"discarded", "purged"} & set(ends[ends.index("dead_lettered") :]):
        ends.pop()
    if events and not {"published", "redriven", "received"} & set(words):
        return "orphaned"
    if len(ends) > 1:
        return "duplicated"
    if ends and any(word in ORDER for word in words[words.index(ends[0]) :]):
        return "resurrected"
    if ends and _is_handed_on_after_its_end(events):
        return "resurrected"
    last = words[-1] if words else None
    if letter and last != "dead_lettered":
        return "phantom_dead_letter"
    if last == "dead_lettered" and old and not letter and not _is_redriven(life, lives):
        return "missing_dead_letter"
    if ends and len(ends) >= words.count("published") + ("redriven" in words):
        return "balanced"
    if any(_is_stuck(row, old=old) for row in held):
        return "stuck"
    return "in_flight" if held or not old else "lost"


def _place_in_life(event: Row) -> tuple[bool, int, int]:
    """An operator's end, which names no delivery, is after all others."""
    step = (ORDER + ENDS).index(event["outcome"])
    return event["outcome"] in ENDS and not event["delivery"], event["delivery"], step


def _is_handed_on_after_its_end(events: list[Row]) -> bool:
    """A redelivery of the delivery that ended, recorded after the end."""
    ended = [event for event in events if event["outcome"] in ENDS]
    scheduled = [event for event in events if event["outcome"] == "redelivery_scheduled"]
    if not scheduled or not ended[0]["delivery"] or scheduled[-1]["delivery"] != ended[0]["delivery"]:
        return False
    return bool(max(event["at_ms"] for event in scheduled) > min(event["at_ms"] for event in ended))


def _is_stuck(row: Row, *, old: bool) -> bool:
    if row["place"] == "delayed":
        return bool(row["due_ms"] + GRACE < NOON + HOUR)
    return row["place"] == "unacked" and not row["owner"] and old


def _is_redriven(life: Life, lives: dict[Life, list[Row]]) -> bool:
    """A later generation in the same queue, or one in a queue where the task was not before."""
    task_id, nesting, generation, queue = life
    relatives = {other: known for other, known in lives.items() if other[:2] == (task_id, nesting)}
    for (_, _, later, elsewhere), known in relatives.items():
        if later > generation and any(row.get("outcome") == "redriven" for row in known):
            was_there = any(other[2] < later and other[3] == elsewhere for other in relatives)
            if elsewhere == queue or not was_there:
                return True
    return False
