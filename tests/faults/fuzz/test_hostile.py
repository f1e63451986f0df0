"""Messages that any client may have written: each ends, and blocks no place of the pool and does not end the worker."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.messages.events import TERMINAL
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

POOLS = pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))


def nested(depth: int) -> Any:
    """A value that JSON can express and pickle cannot."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


HEADERS: dict[str, dict[str, Any]] = {
    "too deep to be pickled": {"note": nested(700)},
    "stamps that are no list": {"stamped_headers": 5},
    "stamps without their values": {"stamped_headers": [["a"]], "stamps": 7},
    "a time limit without end": {"timelimit": [float("inf"), None]},
    "a time limit that is not a number": {"timelimit": [float("nan"), None]},
    "a time limit before the beginning": {"timelimit": [-1, -1]},
    "a time limit that is a truth": {"timelimit": [True, True]},
    "retries below zero": {"retries": -5},
    "retries beyond all numbers": {"retries": 10**400},
    "an id that is a number": {"id": 5},
    "an id that is a list": {"id": ["x"]},
    "an id without end": {"id": "x" * 100_000},
    "an id that cannot be encoded": {"id": "\ud800"},
    "a task that is a list": {"task": ["tests.support.shop.ok"]},
    "a root that is an object": {"root_id": {"a": 1}, "parent_id": [1]},
    "a nesting that is a word": {"replaced_task_nesting": "x"},
    "a group that is a list": {"group": [1]},
    "an expiry that is no time": {"expires": "soon"},
    "an expiry that is a list": {"expires": [1]},
    "an ETA that is no time": {"eta": "9999-99-99"},
    "an ETA that is a number": {"eta": 5},
    "arguments that are a number": {"argsrepr": 5, "kwargsrepr": []},
    "an envelope that is a word": {"redelivery": "x"},
    "an envelope of wrong kinds": {"redelivery": {"attempt": "many", "deaths": 5, "attempts": "zz", "generation": []}},
    "an envelope before the beginning": {"redelivery": {"v": 1, "attempt": -1, "generation": -3, "first_seen": 1e300}},
}
BODIES: dict[str, Any] = {
    "callbacks that are a number": [[], {}, {"callbacks": 5, "errbacks": None, "chain": None, "chord": None}],
    "errbacks that are an object": [[], {}, {"callbacks": None, "errbacks": {"x": 1}, "chain": None, "chord": None}],
    "a chain that is a word": [[], {}, {"callbacks": None, "errbacks": None, "chain": "x", "chord": None}],
    "a chord that is a number": [[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": 7}],
    "a body that is a number": 5,
    "keywords that are a list": [[], [1], {}],
    "more arguments than there are": [[1, 2, 3], {"what": 1}, {}],
}
PROPERTIES: dict[str, dict[str, Any]] = {
    "a priority that is a word": {"priority": "high"},
    "a correlation that is an object": {"correlation_id": {}, "reply_to": [1]},
    "a delivery that is a word": {"delivery_info": "x"},
    "a body of no encoding": {"body_encoding": "rot13"},
}


def raw(
    name: str, headers: dict[str, Any] | None = None, body: Any = ([], {}, {}), properties: dict[str, Any] | None = None
) -> bytes:
    """A message as kombu writes it, with one fault."""
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "tests.support.shop.ok", "id": name, "lang": "py", "redelivery-announced": 1, **(headers or {})},
        "properties": {
            "delivery_tag": "t",
            "body_encoding": "base64",
            "delivery_info": {"routing_key": "celery"},
            **(properties or {}),
        },
    }
    return json.dumps(message).encode()


MESSAGES = (
    [raw(name, headers=headers) for name, headers in HEADERS.items()]
    + [raw(name, body=body) for name, body in BODIES.items()]
    + [raw(name, properties=properties) for name, properties in PROPERTIES.items()]
)


@POOLS
def test_hostile_messages_end_and_cost_the_worker_nothing(shop: Callable[..., Shop], pool: str) -> None:
    """Forty of them on a pool of two: each has one end in the books, and later tasks run on all places of the pool."""
    here = shop(settings={"queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": 2}}}, backend=True)
    here.server.client.rpush("celery", *reversed(MESSAGES))
    worker = here.start(pool=pool, wait=False)

    def ends() -> list[Any]:
        return [event for event in here.events if event.outcome in TERMINAL]

    def told() -> str:
        return f"{len(ends())} of {len(MESSAGES)} ended; the worker says {worker.text[-3000:]}"

    until(lambda: len(ends()) >= len(MESSAGES) or worker.process.poll() is not None, 90, "all to end")
    assert worker.process.poll() is None, told()
    behind = [here.send("naps", 0.1) for _ in range(4)]
    for task_id in behind:
        here.ended(task_id, "succeeded")
    until(lambda: here.leftovers() == {}, 60, "nothing to be held")
    assert len(ends()) == len(MESSAGES) + len(behind), sorted(event.task_id[:40] for event in ends())
    lives = [(event.task_id, event.generation) for event in ends()]
    assert len(set(lives)) == len(lives)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("pool", "what"),
    first_quick([("prefork", "interrupt"), ("threads", "interrupt"), ("solo", "interrupt"), ("threads", "shutdown")]),
)
def test_a_task_that_asks_its_process_to_end_is_a_counted_attempt(shop: Callable[..., Shop], pool: str, what: str) -> None:
    """`KeyboardInterrupt` counts as a lost worker, on every pool; so does `WorkerShutdown` in a thread."""
    here = shop(settings={"queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": 2}}}, backend=True)
    worker = here.start(pool=pool)
    task_id = here.send("raises", what)
    end = here.ended(task_id, "dead_lettered")
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
    assert (end.reason, end.attempt, len(here.runs(task_id))) == ("worker_lost", 2, 2)
    here.ended(here.send("ok"), "succeeded")
    until(lambda: here.leftovers() == {}, 60, "nothing to be held")
    assert here.app.AsyncResult(task_id).state == "FAILURE"
    assert worker.process.poll() is None


def test_a_task_that_stops_its_own_worker_is_a_counted_attempt(shop: Callable[..., Shop]) -> None:
    """On solo, `WorkerShutdown` in a task ends the worker: after as many workers as it has attempts, the task is dead."""
    here = shop(settings={"lease": 2, "queues": {"#": {"redelivery_delay": 0.05, "max_delivery_attempts": 2}}})
    task_id = here.send("raises", "shutdown")
    for _ in range(2):
        assert here.start(pool="solo", wait=False).process.wait(60) is not None
    end = here.ended(task_id, "dead_lettered")
    assert here.outcomes_of(task_id) == ["published", "redelivery_scheduled", "dead_lettered"]
    assert (end.reason, len(here.runs(task_id)), here.leftovers()) == ("worker_lost", 2, {})
