"""A week of a shop's books for the pictures of the report: seven days, each reconciled with the state of the day before.

On the last day the bank is down for two hours, so more payments fail; one payment is lost, and one runs twice. An operator redrives
most dead letters of the day before. The random numbers are always the same.
"""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.spark.session import session
from tests.support.books.spark_session import NOON, Histories, Row, write_lines

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["a_week"]

DAYS, DAY_MS, HOUR_MS = 7, 86_400_000, 3_600_000
#: The start of the last day, and the hours in which the bank is down on it.
LAST_MS, AWAY = NOON - DAY_MS // 2, (14, 15)
#: Name of a task, queue, number on a day, run time (ms), exception, and deaths in a thousand.
TASKS = (
    ("shop.payments.charge_card", "orders", 700, 340, "requests.exceptions.ReadTimeout", 6),
    ("shop.mail.send_receipt", "mail", 650, 90, "smtplib.SMTPServerDisconnected", 2),
    ("shop.parcels.print_label", "parcels", 400, 800, "shop.parcels.NoSuchParcel", 9),
)
SAID = {
    "requests.exceptions.ReadTimeout": "HTTPSConnectionPool(host='pay.example'): read timed out",
    "smtplib.SMTPServerDisconnected": "Connection unexpectedly closed",
    "shop.parcels.NoSuchParcel": "there is no parcel 1482",
}
FINGERPRINTS = dict(zip(SAID, ("3c1f9a2e0d5b", "b07d44c1a902", "91e2a7d06c3f"), strict=True))
APP = {"app": "shop", "broker": "redis://redis.internal:6379/0"}


class _Shop:
    """The events and inventories of its days, and its present dead letters."""

    def __init__(self) -> None:
        self._drawn = random.Random(11)  # noqa: S311 - numbers of a picture
        self._letters: list[Row] = []

    def day(self, number: int) -> Histories:
        """The events and inventory of one day."""
        histories, began_ms = Histories(), _beginning_of(number)
        self._redrive(histories, began_ms)
        for task, queue, many, run_ms, exception, deaths in TASKS:
            for _ in range(int(many * self._drawn.uniform(0.9, 1.1))):
                start_ms = began_ms + int(self._drawn.triangular(0, 23, 14) * HOUR_MS)
                is_away = number == DAYS - 1 and queue == "orders" and start_ms // HOUR_MS % 24 in AWAY
                steps = self._steps(run_ms, exception, 250 if is_away else deaths)
                self._add(histories, start_ms, steps, task=task, queue=queue)
        if number == DAYS - 1:
            self._add(histories, LAST_MS + 9 * HOUR_MS, [("received", {"delivery": 1})], task=TASKS[0][0], queue="orders")
            twice = [("succeeded", {"delivery": each, "attempt": each, "worker": f"w{each}@shop-{each}"}) for each in (1, 2)]
            self._add(histories, LAST_MS + 11 * HOUR_MS, twice, task=TASKS[0][0], queue="orders")
        for each in self._letters:
            histories.hold(**each, place="dead_letter", seen_ms=began_ms + DAY_MS)
        return histories

    def _steps(self, run_ms: int, exception: str, deaths: int) -> list[tuple[str, Row]]:
        """The steps of a task: `deaths` in a thousand die, a few are redelivered, and most succeed at once."""
        chance, failed = self._drawn.random() * 1000, {"exception": exception, "fingerprint": FINGERPRINTS[exception]}
        again = [("redelivery_scheduled", self._ran(run_ms, each) | failed | {"delay_ms": each * 1000}) for each in (1, 2)]
        if chance < deaths:
            return [*again, ("dead_lettered", self._ran(run_ms, 3) | failed | {"reason": "exhausted"})]
        tries = 0 if chance > deaths + 40 else 1 if chance > deaths + 10 else 2
        return [*again[:tries], ("succeeded", self._ran(run_ms, tries + 1))]

    def _ran(self, run_ms: int, attempt: int) -> Row:
        worker = f"w{self._drawn.randint(1, 2)}@shop-{self._drawn.randint(1, 2)}"
        ran_ms = int(run_ms * self._drawn.lognormvariate(0, 0.5))
        return {"attempt": attempt, "delivery": attempt, "worker": worker, "run_ms": ran_ms, "release": "4.2"}

    def _add(self, histories: Histories, start_ms: int, steps: list[tuple[str, Row]], **common: Any) -> None:
        """Add the events of a task, with the waits and run times between them."""
        at_ms, steps_in_random_order = start_ms, []
        for outcome, facts in steps:
            at_ms += int(self._drawn.expovariate(1 / 200)) + facts.get("run_ms", 0)
            steps_in_random_order.append((outcome, facts | {"at_ms": at_ms}))
            at_ms += facts.get("delay_ms", 0)
        task_id = str(uuid.UUID(int=self._drawn.getrandbits(128), version=4))
        histories.add(task_id, "published", *steps_in_random_order, start_ms=start_ms, **common)
        if steps[-1][0] == "dead_lettered":
            self._letters.append({"task_id": task_id, "message": SAID[steps[-1][1]["exception"]], "generation": 0, **common})

    def _redrive(self, histories: Histories, began_ms: int) -> None:
        """Redrive most dead letters. All of them succeed."""
        stays = []
        for number, each in enumerate(self._letters):
            if number % 5 == 0 or each["queue"] == "parcels":
                stays.append(each)
                continue
            done = ("succeeded", {"attempt": 1, "delivery": 1, "worker": "w1@shop-1", "run_ms": 300, "release": "4.2"})
            common = {"task": each["task"], "queue": each["queue"], "generation": 1}
            histories.add(each["task_id"], ("redriven", {"actor": "ada"}), done, start_ms=began_ms + 8 * HOUR_MS, **common)
        self._letters = stays


def a_week(folder: Path) -> Path:
    """Keep the books of a week in a new folder. Returns the output of the last day."""
    folder.mkdir()
    outcomes, inventory, output, state = (str(folder / name) for name in ("outcomes", "inventory", "output", "state"))
    shop, books = _Shop(), Books(outcomes=outcomes, inventory=inventory, output=output, state=state, are_small=True)
    with session(input_bytes=0, log=folder / "spark.log") as spark:
        for number in range(DAYS):
            day, began_ms = shop.day(number), _beginning_of(number)
            date = datetime.fromtimestamp(began_ms / 1000, UTC).date()
            write_lines(folder / "outcomes" / f"date={date}" / "hour=12" / "outcomes.jsonl", day.events)
            write_lines(folder / "inventory" / "inventory.jsonl", day.inventory)
            (folder / "inventory" / "_taken.json").write_text(json.dumps({"seen_ms": began_ms + DAY_MS, **APP}))
            reconcile(spark, books)
    return folder / "output"


def _beginning_of(day: int) -> int:
    return LAST_MS + (day - DAYS + 1) * DAY_MS
