"""Recovery: a worker gives back dead workers' messages, and does everything else that it must do meanwhile."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from redelivery.middleware.brokers.redis.keys import unacked_suffix
from redelivery.middleware.brokers.redis.receiving.owner import Owner
from redelivery.middleware.brokers.redis.receiving.receiver import Receiver
from redelivery.middleware.brokers.redis.scripts import Script
from redelivery.middleware.messages.envelope import Envelope
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.worker.lifecycle import begin
from redelivery.workers.duties.lease import Lease
from redelivery.workers.duties.recoverer import Recoverer
from tests.support.desk import QUEUE, Desk, task_message
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop
    from tests.support.servers import Server

#: Giving this many back takes several times as long as a lease.
MANY = 6_000


def held_by_the_dead(desk: Desk, token: str, *messages: dict[str, Any], queue: str = QUEUE) -> None:
    """Messages held by a worker that died and was fenced already."""
    keys = desk.keys
    with desk.client.pipeline(transaction=False) as pipe:
        pipe.hset(keys.owners, token, json.dumps({"worker": f"{token}@dead"}))
        for number, message in enumerate(messages, 1):
            tag = f"{token}:{number}"
            pipe.hset(keys.unacked, tag, b"[" + sealed(message) + unacked_suffix(queue).encode())
            pipe.zadd(keys.unacked_index, {tag: time.time() + 86_400})
        pipe.execute()


@pytest.mark.full
@pytest.mark.slow
def test_a_lease_is_renewed_and_others_are_watched_while_much_is_recovered(shop: Callable[..., Shop]) -> None:
    """A worker that gives back 6,000 messages is not taken for dead, and notices the next dead worker meanwhile."""
    here = shop(settings={"lease": 2})
    desk = Desk(here.server)
    held_by_the_dead(desk, "w", *(task_message(str(number), "tests.support.shop.ok") for number in range(MANY)), queue="cold")
    for token in "wv":
        desk.transport.leases.register(token, {"worker": f"{token}@dead"})
    worker = here.start("-Q", "celery", pool="threads")
    lives_on = time.monotonic() + 1
    until(lambda: desk.transport.leases.renew("v") and time.monotonic() > lives_on, 60)  # it dies a little later than the other
    until(lambda: desk.client.llen("cold"), 60, "the first to be back")
    leases: Any = desk.client.hkeys(desk.keys.leases)
    until(lambda: desk.client.llen("cold") == MANY and not desk.client.hkeys(desk.keys.recovering), 120, "all to be back")
    lines = worker.text.splitlines()
    order = [line.split("event=")[1].split()[0] for line in lines if "owner.presumed_dead" in line or "owner.recovered" in line]
    assert order[:3] == ["owner.presumed_dead", "owner.presumed_dead", "owner.recovered"]
    assert "owner.fenced" not in worker.text
    assert desk.client.hkeys(desk.keys.leases) == [token for token in leases if token != b"v"]
    assert [message["headers"]["id"] for message in desk.messages("cold")] == [str(number) for number in range(MANY)]
    here.ended(here.send("ok"), "succeeded")


def test_a_message_that_cannot_be_recovered_does_not_keep_the_others(any_server: Server) -> None:
    """Its dead-letter queue is a key of another type: it stays held, is named in the log, and is recovered after that is mended."""
    desk = Desk(any_server)
    begin(desk.install, "living@desk")
    spent = task_message("spent", redelivery={"v": 1, "attempt": 2})
    held_by_the_dead(desk, "w", task_message("first"), spent, task_message("last"))
    desk.client.hset(desk.keys.starts, "w:2", 1)
    desk.client.hset(desk.keys.recovering, "w", 1)
    desk.client.set("DLQ.orders", "no list")
    recoverer = Recoverer(desk.install)
    with capture_logs() as lines:
        recoverer.step()
    assert [(line["tag"], line["log_level"]) for line in lines if line["event"] == "message.not_recovered"] == [("w:2", "error")]
    assert (desk.ids(), desk.client.hkeys(desk.keys.unacked)) == (["first", "last"], [b"w:2"])
    assert desk.client.hexists(desk.keys.recovering, "w")
    desk.client.delete("DLQ.orders")

    def is_recovered() -> bool:
        recoverer.step()
        return not desk.client.exists(desk.keys.recovering, desk.keys.unacked)

    until(is_recovered, 60)
    assert desk.ids("DLQ.orders") == ["spent"]
    assert [event.task_id for event in desk.events if event.outcome == "dead_lettered"] == ["spent"]


def test_a_recoverer_that_stops_half_way_is_followed_by_the_next(any_server: Server) -> None:
    """Messages that it has not given back are still held, and their owner is still marked for recovery."""
    desk = Desk(any_server)
    begin(desk.install, "living@desk")
    held_by_the_dead(desk, "w", *(task_message(f"m{number}") for number in range(5)))
    desk.client.hset(desk.keys.recovering, "w", 1)
    stopped = Recoverer(desk.install)
    stopped.stop()
    stopped.step()
    assert desk.client.hlen(desk.keys.unacked) == 5
    Recoverer(desk.install).step()
    assert desk.ids() == [f"m{number}" for number in range(5)]
    assert not desk.client.exists(desk.keys.recovering, desk.keys.unacked)
    assert all(Envelope.of(message["headers"]).suspect for message in desk.messages())


def test_what_an_owner_held_comes_back_though_all_leases_were_deleted(any_server: Server) -> None:
    """Nobody has fenced it: when it takes another token, it notes the lost one. One that was recovered is not noted again."""
    desk = Desk(any_server)
    begin(desk.install, "w@desk")
    lost = desk.install.owner.token
    held_by_the_dead(desk, lost, *(task_message(f"m{number}") for number in range(3)))
    desk.client.delete(desk.keys.leases)
    Lease(desk.install).step()
    assert desk.client.hkeys(desk.keys.recovering) == [lost.encode()]
    Recoverer(desk.install).step()
    assert desk.ids() == ["m0", "m1", "m2"]
    assert not desk.client.exists(desk.keys.recovering, desk.keys.unacked)
    desk.transport.leases.register("another", {}, lost=lost)
    assert not desk.client.exists(desk.keys.recovering)


def test_an_owner_that_finds_out_twice_takes_one_new_token(any_server: Server) -> None:
    """The receiver and the lease notice the fence at once. Nobody would renew a second token: its messages would run twice."""
    desk = Desk(any_server)
    owner = Owner(desk.transport, "w@desk")
    owner.begin(owner.token)
    lost = owner.token
    desk.transport.leases.fence(lost, b"0")
    together = threading.Barrier(8)

    def find_out() -> None:
        together.wait()
        owner.begin(lost)

    threads = [threading.Thread(target=find_out) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert desk.client.hkeys(desk.keys.leases) == [owner.token.encode()]
    assert owner.token != lost


@pytest.mark.parametrize("priority", [0, 3, 9])
def test_a_batch_that_is_asked_for_again_knows_where_it_came_from(any_server: Server, priority: int) -> None:
    """A message that is given back goes to the list of its priority, not to the queue's first list."""
    desk = Desk(any_server)
    owner = Owner(desk.transport, "w@desk")
    owner.begin(owner.token)
    channel: Any = desk.app.connection_for_read().default_channel
    channel.arm(Receiver(owner, lambda: 64, lambda: 1, lambda *_: None))
    desk.publish(task_message("a", priority=priority), priority=priority)
    keys, receiver = desk.keys, channel.receiver
    receiver.queues, receiver.asked_as = [QUEUE], owner.token
    names, suffixes = channel._names_of((QUEUE,), owner.token)  # what the poller does
    args = [owner.token, 1, 10, 10**6, 1, 1, 0, *suffixes, 1]
    lost, again = (Script("receive")(desk.client, names, args) for _ in range(2))
    assert (int(lost[5]) > 0, again[5]) == (True, 0)
    channel._take_in(again)
    (held,) = receiver.pending
    assert (held.list_name, owner.calls) == (keys.list_name(QUEUE, priority), 1)
    assert desk.transport.release([held]) == 1
    assert desk.client.llen(keys.list(keys.list_name(QUEUE, priority))) == 1
