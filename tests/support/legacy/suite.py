"""The application's own tests, written for plain Celery."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, MaxRetriesExceededError, TaskRevokedError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60


@pytest.fixture
def tasks(worker: None) -> Any:  # noqa: ARG001 - it must run
    import store.tasks  # noqa: PLC0415 - the app is configured by the worker's fixture

    return store.tasks


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, and return its value."""
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def told() -> str:
    path = Path(os.environ["STORE_FOLDER"], "told")
    return path.read_text() if path.exists() else ""


def lines(task_id: str) -> list[str]:
    from store.models import Line  # noqa: PLC0415 - as above

    return list(Line.objects.filter(task_id=task_id).order_by("id").values_list("what", flat=True))


def test_a_task(tasks: Any) -> None:
    assert tasks.price.delay("book", 2).get(TIMEOUT) == 8


def test_eagerly_and_directly(tasks: Any) -> None:
    assert tasks.price("book") == 4
    assert tasks.price.apply(args=("book",)).get() == 4
    with pytest.raises(tasks.OutOfStockError):
        tasks.refuse.apply(args=(0,), throw=True)


def test_django(tasks: Any) -> None:
    """Tasks share the database; a base writes the audit."""
    placed = tasks.place.delay("book")
    order = placed.get(TIMEOUT)
    assert tasks.pay.delay(order).get(TIMEOUT) == "paid"
    assert tasks.status.delay(order).get(TIMEOUT) == "paid"
    assert lines(placed.id) == ["placing", "success"]


def test_django_on_commit(tasks: Any) -> None:
    from django.db import transaction  # noqa: PLC0415 - Django must have been set up
    from store.models import Order  # noqa: PLC0415 - as above

    with transaction.atomic():
        order = Order.objects.create(item="pen")
        tasks.pay.delay_on_commit(order.pk)
    until(lambda: Order.objects.get(pk=order.pk).status == "paid")


def test_a_failure(tasks: Any) -> None:
    """The caller gets the exception, and the base hears of it once."""
    result = tasks.refuse.delay(7)
    with pytest.raises(tasks.OutOfStockError, match="order 7 is for nothing"):
        result.get(TIMEOUT)
    assert result.state == "FAILURE"
    assert "OutOfStockError" in result.traceback
    assert until(lambda: lines(result.id)) == ["failure OutOfStockError"]


def test_a_foreseen_failure(tasks: Any) -> None:
    with pytest.raises(tasks.OutOfStockError, match="sold out"):
        tasks.expected_failure.delay().get(TIMEOUT)


def test_retry(tasks: Any) -> None:
    assert tasks.ask_bank.delay(uuid.uuid4().hex, 3).get(TIMEOUT) == 3


def test_retry_has_a_limit(tasks: Any) -> None:
    """Three retries are four tries, and the last exception is the caller's."""
    name = uuid.uuid4().hex
    with pytest.raises(tasks.BankError, match="try 4"):
        tasks.ask_bank.delay(name, 99).get(TIMEOUT)
    assert tasks.tries(name) == 5


def test_autoretry(tasks: Any) -> None:
    """The second answer; or two retries and no more."""
    assert tasks.ask_bank_kindly.delay(uuid.uuid4().hex, 2).get(TIMEOUT) == 2
    with pytest.raises(tasks.BankError, match="try 3"):
        tasks.ask_bank_kindly.delay(uuid.uuid4().hex, 99).get(TIMEOUT)


def test_retry_without_an_exception(tasks: Any) -> None:
    with pytest.raises(MaxRetriesExceededError):
        tasks.give_up.delay().get(TIMEOUT)


def test_a_task_may_catch_the_end_of_its_retries(tasks: Any) -> None:
    assert tasks.fall_back.delay("letter").get(TIMEOUT) == "letter by hand, after 2 retries"


def test_retry_with_other_arguments(tasks: Any) -> None:
    assert tasks.count_down.delay(3).get(TIMEOUT) == "lift off after 3 retries"


def test_chain(tasks: Any) -> None:
    assert chain(tasks.price.s("book"), tasks.add.s(6), tasks.discount.s(50)).delay().get(TIMEOUT) == 5


def test_a_chain_stops_at_a_failure(tasks: Any) -> None:
    result = chain(tasks.place.s("book"), tasks.refuse.s(), tasks.pay.si(1)).delay()
    with pytest.raises(tasks.OutOfStockError):
        result.parent.get(TIMEOUT)
    until(lambda: result.state == "FAILURE")


def test_group(tasks: Any) -> None:
    assert group(tasks.price.s("x" * n) for n in range(1, 6)).delay().get(TIMEOUT) == [1, 2, 3, 4, 5]


def test_chord(tasks: Any) -> None:
    assert chord([tasks.price.s("x" * n) for n in range(1, 6)], tasks.total.s()).delay().get(TIMEOUT) == 15


def test_a_chord_with_a_task_that_retries(tasks: Any) -> None:
    """Each member counts once."""
    header = [tasks.ask_bank.s(uuid.uuid4().hex, 2), tasks.ask_bank_kindly.s(uuid.uuid4().hex, 2), tasks.price.s("x")]
    assert chord(header, tasks.total.s()).delay().get(TIMEOUT) == 5


def test_a_chord_with_a_failure(tasks: Any) -> None:
    """Its body fails, and so says its member; the caller hears of one of them first."""
    with pytest.raises((ChordError, tasks.OutOfStockError)):
        chord([tasks.price.s("x"), tasks.refuse.s(1)], tasks.total.s()).delay().get(TIMEOUT)


def test_nested_canvas(tasks: Any) -> None:
    """A chain of a chord in a group."""
    inner = chain(group(tasks.price.s("ab"), tasks.price.s("abc")), tasks.total.s(), tasks.add.s(10))
    assert group(inner, tasks.price.s("x")).delay().get(TIMEOUT) == [15, 1]


def test_link_and_errback(tasks: Any) -> None:
    """Each is called once, for its own end."""
    good = tasks.price.apply_async(("book",), link=tasks.tell.s("good"))
    bad = tasks.refuse.apply_async((1,), link=tasks.tell.si("wrong"), link_error=tasks.tell.si("bad"))
    until(lambda: f"{good.id} good" in told() and f"{bad.id} bad" in told())
    assert told().count(bad.id) == 1


def test_replace(tasks: Any) -> None:
    """The replaced task's result is the other's."""
    assert tasks.expand.delay(["a", "bb", "ccc"]).get(TIMEOUT) == 6


def test_a_base_with_a_call_of_its_own(tasks: Any) -> None:
    """What it opens, and what it answers for."""
    assert tasks.connected.delay().get(TIMEOUT) == "open"
    assert tasks.connected.delay(is_shut=True).get(TIMEOUT) == "shut"


def test_a_base_with_state(tasks: Any) -> None:
    """Its `__init__` and `before_start` are called."""
    assert tasks.counted.delay().get(TIMEOUT) >= 1


def test_routing(tasks: Any) -> None:
    """By the settings, and by the call."""
    assert tasks.mail.delay("ann").get(TIMEOUT) == "ann by mail"
    assert tasks.mail.apply_async(("bob",), queue="celery").get(TIMEOUT) == "bob by celery"


def test_reject_and_ignore(tasks: Any) -> None:
    """A rejected task leaves no result of its own but a failure, an ignored one what it stored."""
    ignored = tasks.ignore.delay()
    assert until(lambda: ignored.state not in {"PENDING", "STARTED"} and ignored.info) == {"by": "hand"}
    rejected = tasks.reject.delay()
    until(lambda: rejected.state in {"FAILURE", "REJECTED"})


def test_soft_time_limit(tasks: Any) -> None:
    assert tasks.patient.delay().get(TIMEOUT) == "in time"


def test_countdown_expires_and_revoke(tasks: Any) -> None:
    """Later, too late, and not at all."""
    assert tasks.price.apply_async(("book",), countdown=1.5).get(TIMEOUT) == 4
    with pytest.raises(TaskRevokedError):
        tasks.price.apply_async(("book",), expires=-1).get(TIMEOUT)
    waiting = tasks.price.apply_async(("book",), countdown=3)
    waiting.revoke()
    with pytest.raises(TaskRevokedError):
        waiting.get(TIMEOUT)


def test_headers_priority_and_own_states(tasks: Any) -> None:
    result = tasks.headers.apply_async(headers={"tenant": "acme"}, priority=6)
    assert result.get(TIMEOUT) == {"tenant": "acme", "root": result.id}
    result = tasks.progress.delay()
    assert result.get(TIMEOUT) == result.id


def test_inspect(tasks: Any) -> None:
    """The worker knows all its tasks."""
    replies = tasks.app.control.inspect(timeout=10).registered()
    assert len([name for name in next(iter(replies.values())) if name.startswith("store.tasks.")]) == 24
