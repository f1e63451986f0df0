"""The leases: each worker renews its own, and two of a fleet watch those of all."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from redelivery.middleware.brokers.redis.leases import Renewal
from redelivery.middleware.worker.lifecycle import begin
from redelivery.workers.duties.bootstep import duties_of
from redelivery.workers.duties.bounds import log_bounds
from redelivery.workers.duties.dispatcher import Dispatcher
from redelivery.workers.duties.lease import Lease
from redelivery.workers.duties.operation_runner import OperationRunner
from tests.support.desk import Desk
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

#: Seconds of a lease; it is renewed eight times meanwhile.
LEASE = 2.0


@pytest.fixture
def fleet(any_server: Server) -> Iterator[list[Desk]]:
    """Four workers of one broker."""
    desks = [Desk(any_server, settings={"lease": LEASE}) for _ in range(4)]
    for number, desk in enumerate(desks):
        begin(desk.install, f"w{number}@desk")
    yield desks
    for desk in desks:
        desk.transport.close()


def renewed(desk: Desk, watch_seconds: float = 10) -> Renewal:
    """What a renewal of this worker says."""
    renewal = desk.transport.leases.renew(desk.install.owner.token, watch_seconds)
    assert renewal is not None
    return renewal


def test_two_watch_the_leases_of_all_and_each_is_replaced(fleet: list[Desk]) -> None:
    """The others only renew their own lease; a watcher that stops renewing its watch is replaced by the next worker that renews."""
    assert [renewed(desk).watches for desk in fleet] == [True, True, False, False]
    assert [renewed(desk).watches for desk in reversed(fleet)] == [False, False, True, True]
    assert not renewed(fleet[2], 0).watches
    fleet[0].client.delete(fleet[0].keys.lease_watcher)
    assert [renewed(fleet[number]).watches for number in (1, 3, 2, 0)] == [True, True, False, False]
    assert 0 < fleet[0].client.pttl(fleet[0].keys.lease_watcher) <= 10_000


def test_a_larger_fleet_renews_less_often_but_for_the_watchers(fleet: list[Desk]) -> None:
    """With nine workers they wait twice as long, with 33 three times, but not the watchers. With eight, each renews as before."""
    duties = [Lease(desk.install) for desk in fleet]
    leases = fleet[0].transport.leases

    def pauses() -> list[float]:
        for duty in duties:
            duty.step()
        return [duty._every / LEASE * 8 for duty in duties]

    assert pauses() == [1, 1, 1, 1]
    for number in range(4, 9):
        leases.register(f"more{number}", {})
    assert pauses() == [1, 1, 2, 2]
    for number in range(9, 33):
        leases.register(f"more{number}", {})
    assert pauses() == [1, 1, 3, 3]
    for number in range(8, 33):
        leases.unregister(f"more{number}")
    assert pauses() == [1, 1, 1, 1]


def test_a_worker_that_is_alone_looks_at_no_lease(any_server: Server) -> None:
    """It begins as soon as there is a second worker."""
    desk = Desk(any_server, settings={"lease": LEASE})
    begin(desk.install, "w0@desk")
    duty = Lease(desk.install)

    def looks() -> int:
        before = desk.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"]
        duty.step()
        return int(desk.client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"] - before)

    assert [looks(), looks()] == [0, 0]
    desk.transport.leases.register("another", {})
    assert [looks(), looks()] == [1, 1]
    desk.transport.leases.unregister("another")
    assert looks() == 0


def test_only_the_watchers_look_at_the_outcome_log_and_each_is_replaced(fleet: list[Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose lease was not renewed yet looks, too."""
    monkeypatch.setattr(log_bounds, "EVERY", 0.01)
    workers = [duties_of(desk.install) for desk in fleet]
    leases, keepers = (
        [duty for duties in workers for duty in duties if isinstance(duty, kind)] for kind in (Lease, log_bounds.LogKeeper)
    )
    looked: list[int] = []
    for number, keeper in enumerate(keepers):
        monkeypatch.setattr(keeper, "step", functools.partial(looked.append, number))
        keeper.start()
    try:
        until(lambda: set(looked) == {0, 1, 2, 3}, 60, "all to look")
        for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
            fleet[0].client.delete(fleet[0].keys.lease_watcher, fleet[0].keys.second_lease_watcher)
            for number in order:
                leases[number].step()
            until(lambda: set(looked[-20:]) == set(order[:2]), 60, f"{order[:2]} alone to look: {looked[-20:]}")  # noqa: B023
    finally:
        for keeper in keepers:
            keeper.stop()


def test_a_watch_that_is_not_renewed_ends_by_itself(fleet: list[Desk]) -> None:
    """It expires, even if its worker lives."""
    assert [renewed(desk, 0.2).watches for desk in fleet[:3]] == [True, True, False]
    until(lambda: renewed(fleet[2]).watches, 60, "the third to watch")


def test_a_renewal_says_what_is_needed(fleet: list[Desk]) -> None:
    """Whether owners must be recovered, and whether the fleet lacks a dispatcher or a worker that carries operations out."""
    desk = fleet[0]
    client, keys = desk.client, desk.keys
    assert renewed(desk) == Renewal(leases=4, watches=True, recovering=False, no_dispatcher=True, no_operator=False)
    client.hset(keys.recovering, "dead", 1)
    client.set(keys.dispatcher, "another")
    client.sadd(keys.open_operations, "one")
    assert renewed(desk) == Renewal(leases=4, watches=True, recovering=True, no_dispatcher=False, no_operator=True)
    client.set(keys.operator, "another")
    assert not renewed(desk).no_operator


def test_a_key_of_another_type_keeps_no_lease_from_being_renewed(fleet: list[Desk]) -> None:
    """A worker that cannot see whether others watch watches the leases itself."""
    desk = fleet[0]
    for name in (desk.keys.recovering, desk.keys.dispatcher, desk.keys.open_operations, desk.keys.operator):
        desk.client.xadd(name, {"a": "b"})
    for name in (desk.keys.lease_watcher, desk.keys.second_lease_watcher):
        desk.client.rpush(name, "x")
    assert [renewed(each).watches for each in fleet] == [True] * 4
    desk.client.delete(desk.keys.second_lease_watcher)
    assert [renewed(each).watches for each in fleet] == [True] * 4


def test_a_dead_worker_is_found_out_though_a_watcher_died_with_it(fleet: list[Desk]) -> None:
    """The first watcher dies, and the second fences it. Then the second dies too, and the two others watch."""
    duties = [Lease(desk.install) for desk in fleet]
    with capture_logs() as logs:

        def presumed() -> set[str]:
            return {line["worker"] for line in logs if line["event"] == "owner.presumed_dead"}

        for duty in duties:
            duty.step()
        for dead in (0, 1):
            began = time.monotonic()

            def is_found_out(dead: int = dead) -> bool:
                for duty in duties[dead + 1 :]:
                    duty.step()
                return f"w{dead}@desk" in presumed()

            until(is_found_out, 60, "the dead worker to be found out")
            assert time.monotonic() - began > LEASE / 2
        assert presumed() == {"w0@desk", "w1@desk"}


def test_who_stands_by_leads_as_soon_as_it_is_told_that_nobody_does(fleet: list[Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for its next regular try."""
    desk = fleet[0]
    tried: list[tuple[str, bool]] = []
    lead = type(desk.transport.leases).lead

    def seen(self: Any, key: str, *args: Any) -> bool:
        answer = lead(self, key, *args)
        tried.append((key, answer))
        return answer

    assert desk.transport.leases.lead(desk.keys.dispatcher, "another", 600)
    desk.client.sadd(desk.keys.open_operations, "one")
    assert desk.transport.leases.lead(desk.keys.operator, "another", 600)
    dispatcher, runner = Dispatcher(desk.transport, standing_by=600), OperationRunner(desk.install, standing_by=600)
    monkeypatch.setattr(type(desk.transport.leases), "lead", seen)
    both = (desk.keys.dispatcher, dispatcher, dispatcher.wake), (desk.keys.operator, runner, runner.wake)
    for _, duty, _ in both:
        duty.start()
    try:
        for name, _, wake in both:
            wake()
            until(functools.partial(tried.__contains__, (name, False)), 60, "it to look, and to find that another one leads")
            assert desk.client.get(name) == b"another"
            desk.client.delete(name)
            wake()
            until(functools.partial(tried.__contains__, (name, True)), 60, f"{name} to be taken")
    finally:
        began = time.monotonic()
        for _, duty, _ in both:
            duty.stop()
    assert time.monotonic() - began < 60
    assert not desk.client.exists(desk.keys.dispatcher, desk.keys.operator)
