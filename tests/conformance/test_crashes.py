"""Workers that die, on every broker: their messages are delivered again, counted, and end once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, cast

import pytest

from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.ports import Capability
from tests.conformance.brokers import AMQP
from tests.support.lanes import first_quick
from tests.support.running import until

if TYPE_CHECKING:
    from tests.conformance.brokers import Place
    from tests.support.rabbit import Rabbit
    from tests.support.running import Shop

SETTINGS: dict[str, Any] = {
    "lease": 2,
    "queues": {"#": {"redelivery_delay": 0.1, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 2}},
}


def kept_alive(shop: Shop, until_true: Any, what: str) -> int:
    """Start a worker each time one dies, until a condition is true; returns how many were started."""
    started = [shop.start(concurrency=1, wait=False)]

    def look() -> bool:
        if started[-1].process.poll() is not None:
            started.append(shop.start(concurrency=1, wait=False))
        return bool(until_true())

    until(look, 240, what)
    return len(started)


@pytest.mark.needs(Capability.KEPT_UNTIL_ACKNOWLEDGED)
def test_what_a_killed_worker_held_is_delivered_again(place: Place) -> None:
    """After SIGKILL in the middle of a task, the task runs on another worker, is marked as redelivered, and ends once."""
    shop = place.shop(settings=SETTINGS)
    first = shop.start(concurrency=1)
    task_id = shop.send("stalls")
    until(lambda: shop.runs(task_id), what="the task to have begun")
    first.kill()
    shop.start(concurrency=1)
    shop.ended(task_id, "succeeded")
    assert shop.outcomes_of(task_id) == ["published", "redelivery_scheduled", "succeeded"]
    assert shop.events_of(task_id)[1].reason == "worker_lost"
    assert len(shop.runs(task_id)) == 2
    until(lambda: not shop.leftovers(), what="nothing to be left")


@pytest.mark.needs(Capability.KEPT_UNTIL_ACKNOWLEDGED)
@pytest.mark.slow
def test_a_task_that_kills_its_worker_every_time_dies_of_it_and_no_innocent_does(place: Place) -> None:
    """It dies as `worker_lost` when its attempts are used up. The other tasks that the worker held succeed."""
    shop, gate = place.shop(settings=SETTINGS), place.folder / "gate"
    innocents = [shop.send("ok")]
    poison = shop.send("kills", kwargs={"group": True, "gate": str(gate)})
    innocents += [shop.send("ok") for _ in range(4)]

    def has_died() -> bool:
        """Let the poison kill when the success of each task before it is recorded: otherwise that attempt would count."""
        runs = len(shop.runs(poison))
        if runs and all("succeeded" in shop.outcomes_of(each) for each in innocents if shop.runs(each)):
            gate.with_name(f"gate{runs}").touch()
        return "dead_lettered" in shop.outcomes_of(poison)

    kept_alive(shop, has_died, "the poison to die")
    letter = until(lambda: next(iter(shop.letters()), None), what="its letter")
    assert [each["headers"]["id"] for each in shop.letters()] == [poison]
    envelope = Envelope.of(letter["headers"])
    assert (envelope.deaths[0]["reason"], envelope.attempt) == ("worker_lost", 2)
    for each in innocents:
        assert shop.ended(each, "succeeded").attempt == 1


@pytest.mark.parametrize("pool", first_quick(["prefork", "threads"]))
@pytest.mark.parametrize("is_read", first_quick([pytest.param(True, id="read"), pytest.param(False, id="unread")]))
@pytest.mark.slow
def test_a_worker_that_is_stopped_gives_back_what_it_has_not_begun(place: Place, pool: str, *, is_read: bool) -> None:
    """Messages that have not begun go back unmarked and uncounted, even unread ones. The next worker sees a first delivery."""
    shop, gate = place.shop(settings=SETTINGS), place.folder / "gate"
    worker = shop.start(concurrency=1, pool=pool)
    slow = shop.send("waits", str(gate))
    until(lambda: shop.runs(slow), what="the first to have begun")
    worker.process.send_signal(signal.SIGCONT if is_read else signal.SIGSTOP)
    others = [shop.send("ok") for _ in range(3)]
    if place.name in AMQP:  # a quorum queue counts messages that it sends to a consumer during its cancel
        until(lambda: cast("Rabbit", place.server).depths()["celery"][1] == 4, what="all to be handed over")
    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGCONT)
    until(lambda: "Warm shutdown" in worker.text, what="the signal to be heard")
    gate.touch()
    worker.process.wait(60)
    assert shop.ended(slow, "succeeded").attempt == 1
    shop.start(concurrency=1, pool=pool)
    for each in others:
        assert shop.ended(each, "succeeded").delivery == 1
        assert [run["redelivered"] for run in shop.runs(each)] == [False]
