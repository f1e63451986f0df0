"""Delayed messages and the operator's commands, on every broker: list, cancel, promote, reschedule."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from redelivery.middleware.ports import Capability
from redelivery.workers.brokers.broker import broker_of
from redelivery.workers.ports import Glance
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.brokers import Place
    from tests.support.running import Shop

pytestmark = pytest.mark.needs(Capability.BROKER_DELAYS)
HOUR = 3600


@pytest.fixture(scope="module")
def waiting(shared_place: Place) -> Iterator[tuple[Place, Shop, dict[str, str]]]:
    """A worker that has put tasks into the delay store, for an hour or more."""
    shop = shared_place.shop()
    shop.start(pool="threads", concurrency=2)
    names = ("cancelled", "promoted", "rescheduled", "looked at", "dry")
    ids = {name: shop.send("ok", countdown=HOUR + number) for number, name in enumerate(names)}
    for task_id in ids.values():
        shop.ended(task_id, "deferred")
    until(lambda: set(listed(shared_place, shop)) >= set(ids.values()), what="all to wait")
    yield shared_place, shop, ids
    shop.stop()


def listed(place: Place, shop: Shop) -> dict[str, dict[str, Any]]:
    """The output of `delayed list`, by task id."""
    return {row["task_id"]: row for row in place.command(shop.app, "delayed", "list")["messages"]}


def test_what_waits_is_listed_with_its_queue_and_its_time(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """`delayed list` and `delayed show`. Looking twice changes nothing."""
    place, shop, ids = waiting
    for _ in range(2):
        row = listed(place, shop)[ids["looked at"]]
        assert (row["queue"], row["task"]) == ("celery", "tests.support.shop.ok")
        assert abs(row["due_ms"] / 1000 - (time.time() + HOUR)) < 600
    (whole,) = place.command(shop.app, "delayed", "show", ids["looked at"])
    assert whole["headers"]["id"] == ids["looked at"]
    found = place.command(shop.app, "task", "show", ids["looked at"])
    assert [each["place"] for each in found["places"]] == ["delayed"]
    assert [event["outcome"] for event in found["events"]] == ["published", "deferred"]


def test_all_that_waits_is_counted_by_when_it_is_due(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """The totals are right for a part of the time, too, and even if few messages are read."""
    _, shop, ids = waiting
    store = broker_of(shop.app.redelivery.transport).delayed
    before = time.time() * 1000
    seen = store.glance(2, 4)
    assert (seen.totals, seen.course, seen.later) == ({"celery": len(ids)}, [0, 0, 0, len(ids)], 0)
    assert [each.contents.task_id for each in seen.soonest] == [ids["cancelled"], ids["promoted"]]
    assert before < seen.until_ms - HOUR * 1000 + 600_000
    seen = store.glance(2, 4, "celery", 60_000)
    assert (seen.course, seen.later, len(seen.soonest)) == ([0] * 4, len(ids), 2)
    assert store.glance(2, 4, "other") == Glance({"celery": len(ids)}, [], [0] * 4, ANY)


def test_the_beginning_of_an_id_names_a_message_that_waits(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """Six characters are enough, for every command that takes an id."""
    place, shop, ids = waiting
    task_id = ids["dry"]
    (whole,) = place.command(shop.app, "delayed", "show", task_id[:8])
    assert whole["headers"]["id"] == task_id
    assert place.command(shop.app, "task", "show", task_id[:8])["task_id"] == task_id
    for words in (("cancel",), ("promote",), ("reschedule", "--in", "2h")):
        (done,) = place.command(shop.app, "delayed", words[0], task_id[:8], *words[1:], "--dry-run")
        assert done["task_id"] == task_id


def test_a_cancelled_message_is_gone_and_recorded(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """After `delayed cancel` it is out of the delay store, and `cancelled` is in the log."""
    place, shop, ids = waiting
    (done,) = place.command(shop.app, "delayed", "cancel", ids["cancelled"])
    assert done["changed"]
    assert shop.ended(ids["cancelled"], "cancelled").reason == "operator"
    assert ids["cancelled"] not in listed(place, shop)


def test_a_promoted_message_runs_now(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """After `delayed promote` it runs at once, although its hour is not over."""
    place, shop, ids = waiting
    place.command(shop.app, "delayed", "promote", ids["promoted"])
    shop.ended(ids["promoted"], "succeeded")
    assert len(shop.runs(ids["promoted"])) == 1


def test_a_rescheduled_message_runs_then_and_not_before(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """After `delayed reschedule --in 3s` it runs once, three seconds later or more."""
    place, shop, ids = waiting
    began = time.time()
    place.command(shop.app, "delayed", "reschedule", ids["rescheduled"], "--in", "3s")
    shop.ended(ids["rescheduled"], "succeeded")
    (run,) = shop.runs(ids["rescheduled"])
    assert run["at"] >= began + 3


def test_a_dry_run_changes_nothing(waiting: tuple[Place, Shop, dict[str, str]]) -> None:
    """With `--dry-run` it is found, and stays delayed."""
    place, shop, ids = waiting
    place.command(shop.app, "delayed", "cancel", ids["dry"], "--dry-run")
    assert ids["dry"] in listed(place, shop)
