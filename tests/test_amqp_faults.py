"""RabbitMQ that goes wrong under a worker: queues deleted, connections closed, an alarm, a restart. Nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.envelope import Envelope
from redelivery.middleware.transports.amqp_names import OUTCOMES
from tests.rabbit import TAP
from tests.running import Shop, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.rabbit import Rabbit

#: Without confirms a producer cannot know that what it published into a closed connection is gone.
CONFIRMED = {"broker_transport_options": {"confirm_publish": True}}
POLICY = {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}


@pytest.fixture
def rabbit_shop(rabbit: Rabbit, folder: Path) -> Iterator[Callable[..., Shop]]:
    """Makes shops on the test's virtual host."""
    made: list[Shop] = []

    def make(**policy: Any) -> Shop:
        server: Any = rabbit
        made.append(Shop(server, folder, settings={"queues": {"#": {**POLICY, **policy}}}, conf=CONFIRMED))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def private_shop(private_rabbit: Rabbit, folder: Path) -> Iterator[Shop]:
    """A shop on a node of its own."""
    server: Any = private_rabbit
    shop = Shop(server, folder, settings={"queues": {"#": POLICY}}, conf={**CONFIRMED, "broker_connection_max_retries": None})
    yield shop
    shop.stop()


def delete(rabbit: Rabbit, *queues: str) -> None:
    """Delete them, whatever is in them."""
    with rabbit.connection() as connection:
        for queue in queues:
            connection.default_channel.queue_delete(queue)


def gone_on(shop: Shop, seen: int) -> None:
    """Wait until more is recorded than was seen."""
    until(lambda: len(shop.events) > seen, what="the worker to go on")


def all_ended(shop: Shop, ids: list[str], outcome: str = "succeeded") -> None:
    """Wait until all of them have this outcome."""

    def are() -> bool:
        return set(ids) <= {event.task_id for event in shop.events if event.outcome == outcome}

    try:
        until(are, 500)
    except AssertionError:
        found = [(each, shop.outcomes_of(each), len(shop.runs(each))) for each in ids]
        missing = [each for each in found if outcome not in each[1]]
        message = f"{len(missing)} of {len(ids)} are not {outcome}: {missing[:5]}; on the broker: {shop.leftovers()}"
        raise AssertionError(message) from None


def test_what_is_deleted_under_a_worker_is_declared_again(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """The dead-letter queue, the outcome log: the next letter and the next event find them again."""
    here = rabbit_shop()
    here.start()
    here.ended(here.send("raises", "dead_letter"), "dead_lettered")
    until(here.letters, what="the first letter")
    delete(rabbit, "DLQ.celery")
    second = here.send("raises", "dead_letter")
    here.ended(second, "dead_lettered")
    assert [each["headers"]["id"] for each in until(here.letters, what="the second letter")] == [second]
    delete(rabbit, OUTCOMES, TAP)
    third = here.send("fails", 1)
    until(lambda: len(here.runs(third)) == 2, what="the task to have succeeded")
    until(lambda: (rabbit.depth(OUTCOMES) or 0) >= 2, what="its events to be in a log that is there again")


def test_a_dead_letter_queue_that_may_not_be_made_is_waited_for(rabbit: Rabbit, rabbit_shop: Callable[..., Shop]) -> None:
    """Deleted under the worker, with auto-creation off: the letter waits in the delay store, and is never run or discarded."""
    here = rabbit_shop(auto_create_dead_letter_resources=False)
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("DLQ.celery", durable=True, auto_delete=False)
    worker = here.start()
    delete(rabbit, "DLQ.celery")
    task_id = here.send("raises", "dead_letter")
    until(lambda: "dead_letter_queue.missing" in worker.text, what="the missing queue to be told")
    assert here.outcomes_of(task_id) == ["published"]
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare("DLQ.celery", durable=True, auto_delete=False)
    here.ended(task_id, "dead_lettered")
    (letter,) = until(here.letters, what="the letter")
    assert Envelope.of(letter["headers"]).deaths[0]["reason"] == "non_retryable"
    assert len(here.runs(task_id)) == 1


def test_a_missing_dead_letter_queue_refuses_the_worker_in_one_line(rabbit_shop: Callable[..., Shop]) -> None:
    """With auto-creation off: every other broker would discard in that case."""
    worker = rabbit_shop(auto_create_dead_letter_resources=False).start(wait=False)
    assert worker.process.wait(120) != 0
    (line,) = [line for line in worker.text.splitlines() if "redelivery: error:" in line]
    assert "DLQ.celery" in line


def test_connections_that_the_broker_closes_lose_nothing(private_rabbit: Rabbit, private_shop: Shop) -> None:
    """Ten times, while tasks succeed, fail and wait: each ends; whatever ran twice is named."""
    here, worker = private_shop, private_shop.start()
    ids, dying = [], []
    for _ in range(10):
        ids += [here.send("ok") for _ in range(10)] + [here.send("fails", 1), here.send("ok", countdown=1.2)]
        dying.append(here.send("raises", "dead_letter"))
        gone_on(here, len(here.events))
        private_rabbit.node.evaluate('[rabbit_networking:close_connection(P, "tests") || P <- rabbit_networking:connections()].')
    all_ended(here, ids)
    all_ended(here, dying, "dead_lettered")
    assert set(dying) <= {each["headers"]["id"] for each in here.letters()}
    assert worker.process.poll() is None
    until(lambda: not private_rabbit.leftovers(), what="nothing to be left")


def test_a_memory_alarm_is_waited_out(private_rabbit: Rabbit, private_shop: Shop) -> None:
    """The broker blocks whoever publishes: nothing is lost, nothing is recorded twice, and it goes on when the alarm is over.

    Meanwhile tasks go on, beyond the prefetch window of eight, although the broker confirms no event of theirs. (Celery's heartbeat
    would wait for its own confirmation, and keep the worker from everything else.)
    """
    here, worker = private_shop, private_shop.start("--without-heartbeat")
    ids = [here.send("naps", 5) for _ in range(2)]
    until(lambda: len(here.runs()) == 2, what="both to have begun")
    ids += [here.send("naps", 0) for _ in range(30)]
    private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    until(lambda: sum(run["event"] == "end" for run in here.runs()) == 32, what="all to have ended")
    private_rabbit.node.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    all_ended(here, ids)
    assert all(here.outcomes_of(each) == ["published", "succeeded"] for each in ids)
    assert worker.process.poll() is None


@pytest.mark.timeout(900)
def test_a_broker_that_is_killed_and_comes_back_has_lost_nothing(private_rabbit: Rabbit, private_shop: Shop) -> None:
    """SIGKILL of the node in the middle of the work: after its restart every task ends, and the letters are there.

    What the node was handing on from one delay level to the next comes at its next try, three minutes later. Its quorum queues are
    some seconds old: one that is killed right after it was made does not find its leader again, with 3.10.8 on a node of its own.
    """
    here, worker = private_shop, private_shop.start()
    all_ended(here, [here.send("ok", countdown=4)])
    ids = [here.send("ok") for _ in range(20)] + [here.send("fails", 1) for _ in range(10)]
    ids += [here.send("ok", countdown=2) for _ in range(5)]
    dying = [here.send("raises", "dead_letter") for _ in range(5)]
    until(lambda: len(here.runs()) > 5, what="some to have run")
    private_rabbit.node.kill()
    private_rabbit.node.start()
    all_ended(here, ids)
    all_ended(here, dying, "dead_lettered")
    assert set(dying) <= {each["headers"]["id"] for each in here.letters()}
    assert worker.process.poll() is None
