"""Synthetic histories of tasks: ordinary ones, and one kind of fault for each verdict, with the true verdict of each life.

This module imports nothing of the project, and has its own list of names, so it cannot share a mistake with the job that it tests
(`proof.py`). `history_files.py` writes the histories to files, with the disorder of real exports.

Limits: a life with a wrong clock is hours old when the inventory is taken, because no books can know that the age of a younger life
is wrong. A copy that an ended delivery schedules again differs from an ordinary redelivery only by its time, so it has the broker's
clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["FAULTS", "HEALTHY", "HOUR", "NOON_MS", "START_MS", "TAKEN_MS", "Task"]

#: 2026-01-31 00:00 UTC. Lives begin in the next 20 hours. The inventory is taken 24 hours later.
START_MS: Final = 1_769_817_600_000
HOUR: Final = 3_600_000
TAKEN_MS: Final = START_MS + 24 * HOUR
#: The time between the two runs, if the histories are reconciled in two runs.
NOON_MS: Final = START_MS + 12 * HOUR
GRACE_MS: Final = 600_000

QUEUES: Final = (("orders", "shop.charge"), ("mail", "shop.send_mail"), ("reports.monthly", "shop.report"), ("orders", "shop.pack"))
OPENINGS: Final = ("published", "redriven", "received")
CAUSES: Final = (
    ("httpx.ConnectTimeout", "9f2c1ab0"),
    ("builtins.ValueError", "0aa81c77"),
    ("psycopg.OperationalError", "77aa0012"),
)
#: The messages of these exceptions.
MESSAGES: Final = {
    "httpx.ConnectTimeout": "no answer from payments.example within 5 s",
    "builtins.ValueError": "amount must be positive, not <-12.50>",
    "psycopg.OperationalError": "could not connect to server: Connection refused",
}


@dataclass(slots=True)
class Task:
    """One task: its events, its place in the broker, and the true verdict of each generation.

    `times` are the true times of the events, without errors of clocks.
    """

    task_id: str
    chance: random.Random
    start_ms: int
    skew_ms: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    inventory: list[dict[str, Any]] = field(default_factory=list)
    truth: dict[int, str] = field(default_factory=dict)
    generation: int = 0
    delivery: int = 0
    now_ms: int = 0
    queue: str = ""
    task: str = ""

    def __post_init__(self) -> None:
        self.queue, self.task = self.chance.choice(QUEUES)
        self.now_ms = self.start_ms

    def tell(self, outcome: str, *, clock: str = "", **facts: Any) -> None:
        """Add an event, a moment after the last one."""
        self.now_ms += self.chance.randint(1, 30_000)
        skew_ms = 0 if clock == "broker" else self.skew_ms
        event = {"task_id": self.task_id, "outcome": outcome, "task": self.task, "queue": self.queue, "generation": self.generation}
        event |= {"event_id": f"{self.now_ms}-{self.chance.getrandbits(40)}", "at_ms": self.now_ms + skew_ms}
        event |= {"clock": "worker" if skew_ms else "broker", "delivery": self.delivery, "attempt": self.delivery, "reason": ""}
        self.events.append(event | facts)
        self.times.append(self.now_ms)

    def open(self) -> None:
        """Add the publication or the redrive. The first delivery follows."""
        self.delivery = 0
        self.tell("redriven" if self.generation else "published")
        self.delivery = 1

    def fail(self, times: int) -> None:
        """Add failed attempts, each with a redelivery."""
        for _ in range(times):
            delay_ms = 1000 * 2 ** (self.delivery - 1)
            exception, fingerprint = self.chance.choice(CAUSES)
            facts = {"exception": exception, "fingerprint": fingerprint, "worker": f"celery@{self.chance.randint(1, 9)}"}
            self.tell("redelivery_scheduled", delay_ms=delay_ms, due_ms=self.now_ms + delay_ms, **facts)
            self.now_ms += delay_ms
            self.delivery += 1

    def die(self) -> None:
        """Add the death of a kept dead letter."""
        exception, fingerprint = self.chance.choice(CAUSES)
        reason = self.chance.choice(["exhausted", "exhausted", "non_retryable", "time_limit"])
        self.tell("dead_lettered", reason=reason, exception=exception, fingerprint=fingerprint)

    def hold(self, place: str, **facts: Any) -> None:
        """Add a row to the inventory."""
        row = {"task_id": self.task_id, "task": self.task, "queue": self.queue, "place": place, "generation": self.generation}
        said = MESSAGES.get(self.events[-1].get("exception", "")) if self.events and place == "dead_letter" else None
        self.inventory.append(row | {"seen_ms": TAKEN_MS, "owner": "", "due_ms": None, "message": said} | facts)

    def held_at(self, ms: int) -> list[dict[str, Any]]:
        """The inventory of an earlier time: the message or the dead letter, if the history goes on after that."""
        done = sum(time <= ms for time in self.times)
        if done == len(self.events):
            return [row | {"seen_ms": ms} for row in self.inventory]
        last = self.events[done - 1] if done else {}
        places = {"dead_lettered": "dead_letter", "redelivery_scheduled": "delayed", "deferred": "delayed"}
        place = places.get(last.get("outcome", ""), "queue")
        if not done or (place == "queue" and last["outcome"] not in OPENINGS):
            return []
        row = {name: last[name] for name in ("task_id", "task", "queue", "generation")}
        return [row | {"place": place, "seen_ms": ms, "owner": "", "due_ms": ms + HOUR if place == "delayed" else None}]

    def be(self, verdict: str) -> None:
        """Set the true verdict of this generation."""
        self.truth[self.generation] = verdict


def _succeeded(task: Task) -> None:
    task.open()
    task.fail(task.chance.choice([0] * 17 + [1, 2, 3]))
    task.tell("succeeded")
    task.be("balanced")


def _deferred(task: Task) -> None:
    task.open()
    task.tell("deferred", due_ms=task.now_ms + 60_000)
    task.now_ms += 60_000
    task.tell("succeeded")
    task.be("balanced")


def _unannounced(task: Task) -> None:
    task.delivery = 1
    task.tell("received", reason="unannounced")
    task.tell("succeeded")
    task.be("balanced")


def _kept(task: Task) -> None:
    task.open()
    task.fail(task.chance.randint(0, 4))
    task.die()
    task.hold("dead_letter")
    task.be("balanced")


def _purged(task: Task) -> None:
    task.open()
    task.die()
    task.delivery = 0
    task.tell("purged", reason="operator")
    task.be("balanced")


def _redriven(task: Task) -> None:
    task.open()
    task.fail(2)
    task.die()
    task.be("balanced")
    task.generation = 1
    task.open()
    task.tell("succeeded")
    task.be("balanced")


def _dropped(task: Task) -> None:
    task.open()
    task.tell(task.chance.choice(["discarded", "expired", "revoked", "ignored", "cancelled"]))
    task.be("balanced")


def _in_flight(task: Task) -> None:
    if task.chance.random() < 0.25:  # noqa: PLR2004 - a young life, in no place at the moment
        task.skew_ms, task.now_ms = 0, TAKEN_MS - GRACE_MS + 120_000
        task.open()
    else:
        task.open()
        place = task.chance.choice(["queue", "unacked", "delayed"])
        task.hold(place, owner="5d0e", due_ms=TAKEN_MS + HOUR if place == "delayed" else None)
    task.be("in_flight")


def _orphaned(task: Task) -> None:
    task.delivery = task.chance.randint(1, 3)
    task.tell(task.chance.choice(["succeeded", "redelivery_scheduled"]))
    task.be("orphaned")


def _duplicated(task: Task) -> None:
    task.open()
    task.tell("succeeded")
    task.delivery += task.chance.randint(0, 1)
    task.tell("succeeded") if task.chance.random() < 0.5 else task.die()  # noqa: PLR2004 - half of them
    task.be("duplicated")


def _resurrected(task: Task) -> None:
    task.open()
    is_same_delivery = task.chance.random() < 0.5  # noqa: PLR2004 - half of them
    clock = "broker" if is_same_delivery else ""
    task.tell("succeeded", clock=clock)
    task.delivery += not is_same_delivery
    task.tell("redelivery_scheduled", clock=clock, delay_ms=1000)
    task.be("resurrected")


def _phantom(task: Task) -> None:
    if task.chance.random() < 0.8:  # noqa: PLR2004 - otherwise a dead letter without events
        task.open()
        task.tell("succeeded")
    task.hold("dead_letter")
    task.be("phantom_dead_letter")


def _missing(task: Task) -> None:
    task.open()
    task.fail(task.chance.randint(0, 2))
    task.die()
    task.be("missing_dead_letter")


def _stuck(task: Task) -> None:
    task.open()
    if task.chance.random() < 0.5:  # noqa: PLR2004 - half of them
        task.fail(1)
        task.hold("delayed", due_ms=TAKEN_MS - GRACE_MS - task.chance.randint(1, HOUR))
    else:
        task.hold("unacked", owner="")
    task.be("stuck")


def _lost(task: Task) -> None:
    task.open()
    task.fail(task.chance.randint(0, 2))
    if task.chance.random() < 0.2:  # noqa: PLR2004 - lost after its redrive
        task.die()
        task.be("balanced")
        task.generation = 1
        task.open()
    task.be("lost")


#: Ordinary histories, with their weights.
HEALTHY: Final[dict[Callable[[Task], None], int]] = {
    _succeeded: 900,
    _deferred: 20,
    _unannounced: 10,
    _kept: 20,
    _purged: 5,
    _redriven: 10,
    _dropped: 15,
    _in_flight: 20,
}

#: Faulty histories, by their verdict.
FAULTS: Final[dict[str, Callable[[Task], None]]] = {
    "orphaned": _orphaned,
    "duplicated": _duplicated,
    "resurrected": _resurrected,
    "phantom_dead_letter": _phantom,
    "missing_dead_letter": _missing,
    "stuck": _stuck,
    "lost": _lost,
}
