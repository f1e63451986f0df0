"""The app of the chaos runs: the tests' shop with counted, capped and judged queues, a task that publishes, and a producer.

`judged` has a dead-letter handler, which decides by the dead letter's id: one that is handled twice gets the same decision.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Queue

from redelivery import DeadLetter, Letter
from tests.faults.chaos.processes.fleet import QUEUES
from tests.support.notes import note
from tests.support.shop import app

if TYPE_CHECKING:
    from redelivery.middleware.transitions.letter import LetterDecision

__all__ = ["app", "produce"]

TWINS = Exchange("twins", "direct")
app.conf.task_queues = [Queue(name, routing_key=name) for name in QUEUES]
app.conf.task_queues += [Queue(name, TWINS, routing_key="twins") for name in ("left", "right")]
app.conf.task_default_queue = "celery"
app.conf.task_publish_retry = False  # a publication that is tried again counts as another publication


@app.task(bind=True, name="tests.support.shop.fans")
def fans(self: Any, queue: str) -> str:
    """Publishes another task."""
    note(self.request.id, attempt=self.request.retries + 1)
    task_id = str(uuid.uuid4())
    publish(os.environ["CHAOS_LEDGER"], task_id, "ok", [], {"queue": queue})
    return task_id


@app.task(bind=True)
def lags(self: Any, seconds: float, then: str) -> None:
    """Takes a while, and then fails the first time (`retry`) or every time (`die`)."""
    note(self.request.id, attempt=self.request.retries + 1)
    time.sleep(seconds)
    if then == "die":
        why = "card stolen"
        raise DeadLetter(why)
    if self.request.retries == 0:
        raise RuntimeError


@app.redelivery.dead_letter_handler("judged")
def judge(letter: Letter) -> LetterDecision:
    """Each decision that a handler may take; a task that is sent back and dies again gets the next decision."""
    decisions = (letter.redrive, letter.archive, letter.discard, letter.park)
    return decisions[(sum(letter.task_id.encode()) + letter.generation) % 4]()


def produce(seed: str, count: int, ledger: str, mix: str) -> None:
    """Publish so many tasks, some in batches; the ledger has a line before each, and one after it when the broker has answered."""
    chance = random.Random(seed)  # noqa: S311 - a scenario, no secret
    while count > 0:
        size = min(count, chance.choice(SIZES))
        count -= size
        tasks = [(str(uuid.UUID(int=chance.getrandbits(128), version=4)), *_drawn(chance, mix)) for _ in range(size)]
        if size == 1:
            publish(ledger, *tasks[0])
        else:
            publish_together(ledger, tasks)


def publish_together(ledger: str, tasks: list[tuple[str, str, list[Any], dict[str, Any]]]) -> None:
    """Publish these in one batch, with a ledger line before each, and one after it when the batch has been answered."""
    for task_id, task, _, _ in tasks:
        _write(ledger, {"id": task_id, "said": "asked", "task": task})
    block, error = app.redelivery.publishing(), ""
    try:
        with block:
            for task_id, task, args, options in tasks:
                app.send_task(f"tests.support.shop.{task}", args, task_id=task_id, retry=False, **options)
    except Exception as exc:  # noqa: BLE001 - as below
        error = str(exc)
    missing = set(block.not_published)
    for task_id, *_ in tasks:
        _write(
            ledger,
            {"id": task_id, "said": "failed", "error": error} if task_id in missing else {"id": task_id, "said": "published"},
        )


def publish(ledger: str, task_id: str, task: str, args: list[Any], options: dict[str, Any]) -> None:
    """Publish one task, with a ledger line before it and one after it."""
    _write(ledger, {"id": task_id, "said": "asked", "task": task})
    try:
        app.send_task(f"tests.support.shop.{task}", args, task_id=task_id, retry=False, **options)
    except Exception as exc:  # noqa: BLE001 - after any error it is not known whether the message is there
        _write(ledger, {"id": task_id, "said": "failed", "error": str(exc)})
    else:
        _write(ledger, {"id": task_id, "said": "published"})


def _write(ledger: str, line: dict[str, Any]) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps({**line, "pid": os.getpid()}) + "\n").encode())
    finally:
        os.close(descriptor)


def _drawn(chance: random.Random, mix: str) -> tuple[str, list[Any], dict[str, Any]]:
    """A task, its arguments, and how it is published."""
    options: dict[str, Any] = {"priority": chance.choice([0, 0, 0, 3, 6, 9])}
    weights = MIXES[mix]
    kind = chance.choices(list(weights), list(weights.values()))[0]
    if kind in DELAYED:
        return "ok", [], {**options, "countdown": chance.uniform(*DELAYED[kind])}
    if kind in {"counted", "capped", "brief"}:
        return "ok", [], {**options, "queue": kind}
    if kind == "judged":
        return "raises", ["dead_letter"], {**options, "queue": kind}
    args: dict[str, list[Any]] = {"naps": [0.03], "dozes": [1.0], "fails": [chance.choice([1, 2])], "dies": [], "kills": [1]}
    if kind == "fans":
        return "fans", [chance.choice(["celery", "capped"] if "capped" in weights else ["celery"])], options
    return {"dies": "fails", "dozes": "naps"}.get(kind, kind), args.get(kind, []), options


#: How many tasks a batch has; most are published one by one.
SIZES = (1, 1, 1, 1, 5)
#: The delays of these tasks: minimum and maximum, in seconds.
DELAYED = {"later": (0.5, 3.0), "much_later": (6.0, 6.0), "waits": (9.0, 12.0)}
MIXES = {
    "all": {
        "ok": 30,
        "naps": 14,
        "dozes": 2,
        "fails": 14,
        "dies": 10,
        "later": 8,
        "much_later": 2,
        "counted": 6,
        "early": 5,
        "kills": 2,
        "fans": 14,
        "capped": 3,
        "judged": 3,
    },
    "rabbitmq": {
        "ok": 30,
        "naps": 14,
        "dozes": 2,
        "fails": 14,
        "dies": 12,
        "later": 8,
        "counted": 8,
        "kills": 2,
        "fans": 14,
        "judged": 4,
        "brief": 4,
    },
    "brief": {"brief": 1},
    "waits": {"waits": 1},
    "plain": {"ok": 50, "naps": 30, "fails": 20},
    "slow": {"dozes": 15, "ok": 85},
}
