"""Queues, exchanges, routes and priorities: a message goes where Celery's configuration sends it, and comes back there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.control.control import SETTINGS, ControlShop, control_shop
from tests.support.control.control_queues import EVERYONE, NEWS, QUEUES
from tests.support.running import until


@pytest.fixture
def here(on: tuple[str, ControlShop]) -> ControlShop:
    """A worker of each pool with the queues of `tests.support.control.control_queues`, and a producer that knows them."""
    return on[1]


def by_queue(here: ControlShop, task_id: str) -> dict[str, list[str]]:
    """The outcomes of one task id on each queue."""
    found: dict[str, list[str]] = {}
    for event in here.events_of(task_id):
        found.setdefault(event.queue, []).append(str(event.outcome))
    return found


def news(here: ControlShop, task: str, *args: Any, key: str, **options: Any) -> str:
    """Publish to the topic exchange."""
    return here.send(task, *args, exchange=NEWS.name, routing_key=key, declare=[NEWS], **options)


def test_a_route_leads_to_a_queue_of_a_direct_exchange(here: ControlShop) -> None:
    """`task_routes` names the queue; the exchange and the routing key are those of the queue."""
    task_id = here.send("bills")
    here.ended(task_id, "succeeded")
    assert by_queue(here, task_id) == {"billing": ["published", "succeeded"]}
    by_key = here.send("ok", exchange="accounts", routing_key="bill", declare=[QUEUES[1].exchange])
    here.ended(by_key, "succeeded")
    assert by_queue(here, by_key) == {"billing": ["published", "succeeded"]}
    assert [run["queue"] for run in here.noted(by_key)] == ["bill"]


def test_a_message_for_two_queues_runs_once_from_each_and_each_is_recorded(here: ControlShop) -> None:
    """One publication to a topic makes two messages: neither ends the other's life."""
    task_id = news(here, "ok", key="news.urgent.fire")
    until(lambda: here.outcomes_of(task_id).count("succeeded") == 2, what="both runs")
    assert by_queue(here, task_id) == {"archive": ["published", "succeeded"], "alerts": ["published", "succeeded"]}
    assert len(here.noted(task_id)) == 2


def test_a_message_for_one_queue_of_the_topic_runs_once(here: ControlShop) -> None:
    """The pattern of the other queue does not match."""
    task_id = news(here, "ok", key="news.daily")
    here.ended(task_id, "succeeded")
    assert by_queue(here, task_id) == {"archive": ["published", "succeeded"]}


def test_a_redelivery_goes_back_to_the_queue_that_it_came_from_alone(here: ControlShop) -> None:
    """The task goes to both queues and fails in each: each message has its own attempts and its own dead letter."""
    task_id = news(here, "fails", key="news.urgent.flood")
    until(lambda: here.outcomes_of(task_id).count("dead_lettered") == 2, what="both deaths")
    life = ["published", "redelivery_scheduled", "redelivery_scheduled", "dead_lettered"]
    assert by_queue(here, task_id) == {"archive": life, "alerts": life}
    assert len(here.noted(task_id)) == 6
    for queue in ("archive", "alerts"):
        assert [letter["headers"]["id"] for letter in here.letters(f"DLQ.{queue}")] == [task_id]


def test_a_countdown_comes_back_to_its_queue(here: ControlShop) -> None:
    """From the delay store it goes to the queue that it came from, not to where its routing key would lead."""
    task_id = news(here, "ok", key="news.urgent.storm", countdown=1.5)
    until(lambda: here.outcomes_of(task_id).count("succeeded") == 2, what="both runs")
    life = ["published", "deferred", "succeeded"]
    assert by_queue(here, task_id) == {"archive": life, "alerts": life}


def test_a_broadcast_is_kombus_own(here: ControlShop) -> None:
    """It uses publish and subscribe, reaches every worker, and is not stored on the broker."""
    task_id = here.send("ok", exchange=EVERYONE.name, declare=[EVERYONE])
    until(lambda: here.noted(task_id), what="the broadcast task to run")
    here.waits_for_nothing()


def one_by_one(**options: Any) -> Any:
    """A control_shop whose worker takes one message at a time."""
    return control_shop(conf={"worker_prefetch_multiplier": 1, "broker_transport_options": options}, settings=SETTINGS)


def test_urgent_messages_run_first_and_queues_take_turns() -> None:
    """0 before 3 before 6 before 9, as in kombu on Redis; within a priority a long queue does not starve a short one."""
    with one_by_one() as here:
        ids = {priority: here.send("ok", priority, priority=priority) for priority in (9, 6, 3, 0)}
        here.start("-Q", "celery,other", pool="solo", concurrency=1)
        here.all_ended(list(ids.values()))
        assert [run["value"] for run in here.runs()] == [0, 3, 6, 9]
        (gate,) = here.filled(1, "turns")
        many = [here.send("ok", "many") for _ in range(8)]
        few = [here.send("ok", "few", queue="other") for _ in range(3)]
        here.open("turns")
        here.all_ended([gate, *many, *few])
        order = [run["value"] for run in here.runs() if run["event"] == "run"][-11:]
        assert Counter(order[:6]) == {"many": 3, "few": 3}


def test_queues_in_an_order_are_emptied_in_that_order() -> None:
    """With kombu's `queue_order_strategy` of `sorted`, the first queue is emptied before the next."""
    with one_by_one(queue_order_strategy="sorted") as here:
        later = [here.send("ok", "b", queue="b") for _ in range(4)]
        first = [here.send("ok", "a", queue="a") for _ in range(4)]
        here.start("-Q", "b,a", "--prefetch-multiplier", "4", pool="solo", concurrency=1)
        here.all_ended([*first, *later])
        assert [run["value"] for run in here.runs()] == ["a"] * 4 + ["b"] * 4
