"""Results for the caller, on every broker: `AsyncResult.get()` raises the exception that a task died of, for every kind of death.

Redis stores the results. RabbitMQ sends them to the caller (Celery's `rpc://`), whom each message names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import InvalidTaskError, Reject, TaskRevokedError, TimeLimitExceeded, WorkerLostError

from redelivery.middleware.ports import Capability
from tests.conformance.brokers import AMQP
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.brokers import Place
    from tests.support.running import Shop

pytestmark = pytest.mark.needs(Capability.OUTCOME_LOG)  # other brokers keep no results, and have only log lines for events

SETTINGS = {
    "queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}},
    "tasks": {"tests.support.shop.naps": {"max_delivery_attempts": 1}},
}
#: Sent before the worker starts; they have expired by then.
EARLY: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {"over": ("ok", (), {"expires": 0.2})}
SENT: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "fine": ("fails", (1,), {}),
    "fails": ("fails", (), {}),
    "gives up": ("raises", ("dead_letter",), {}),
    "rejects": ("raises", ("reject",), {}),
    "killed": ("kills", (), {}),
    "too long": ("naps", (600,), {"time_limit": 1}),
    "unsound": ("ok", (), {"time_limit": "soon"}),
    "waits": ("ok", (), {"countdown": 3600}),
}


@pytest.fixture(scope="module")
def results(shared_place: Place) -> Iterator[tuple[Shop, dict[str, str]]]:
    """A worker with a result backend, and the tasks that were sent."""
    shop = shared_place.shop(settings=SETTINGS, backend="rpc://" if shared_place.name in AMQP else True)
    shared_place.declare(shop, "celery")
    ids = {name: shop.send(task, *args, **options) for name, (task, args, options) in EARLY.items()}
    began = time.time()
    until(lambda: time.time() > began + 0.5, what="it to be over")
    shop.start()
    ids.update({name: shop.send(task, *args, **options) for name, (task, args, options) in SENT.items()})
    yield shop, ids
    shop.stop()


def test_a_result_comes_back_after_a_redelivery(results: tuple[Shop, dict[str, str]]) -> None:
    """The state RETRY between two attempts does not end the caller's wait."""
    shop, ids = results
    assert shop.app.AsyncResult(ids["fine"]).get(timeout=120) == "at last"


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend, in this process
def test_the_caller_of_a_cancelled_task_is_told(results: tuple[Shop, dict[str, str]], shared_place: Place) -> None:
    """After `delayed cancel` the caller gets Celery's exception for a revoked task."""
    shop, ids = results
    shop.ended(ids["waits"], "deferred")
    (done,) = until(lambda: shared_place.command(shop.app, "delayed", "cancel", ids["waits"]), what="it to wait")
    assert done["changed"]
    caught = shop.app.AsyncResult(ids["waits"]).get(timeout=60, propagate=False)
    assert isinstance(caught, TaskRevokedError)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("fails", "RuntimeError", "exhausted"),
        ("gives up", "DeadLetter", "non_retryable"),
        ("rejects", Reject.__name__, "rejected"),
        ("killed", WorkerLostError.__name__, "worker_lost"),
        ("too long", TimeLimitExceeded.__name__, "time_limit"),
        ("unsound", InvalidTaskError.__name__, "invalid"),
        ("over", TaskRevokedError.__name__, "expired"),
    ],
)
def test_the_caller_is_told_what_a_task_died_of(results: tuple[Shop, dict[str, str]], name: str, kind: str, reason: str) -> None:
    """For every reason, the caller gets the exception that the task died of, and the dead letter is kept (RabbitMQ R9)."""
    shop, ids = results
    caught = shop.app.AsyncResult(ids[name]).get(timeout=60, propagate=False)
    assert kind in {each.__name__ for each in type(caught).__mro__}, repr(caught)
    assert shop.ended(ids[name], "dead_lettered").reason == reason
