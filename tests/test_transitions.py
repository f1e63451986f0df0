"""The transitions on Redis, each against a real server: what moves, is recorded, is refused, and what a full server does."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from redelivery.middleware.keys import Keys, split_unacked, unacked_suffix
from redelivery.middleware.outcomes import Event, Outcome, Reason, entries
from redelivery.middleware.scripts import Script
from redelivery.middleware.transports.base import Answer, Held
from redelivery.middleware.transports.redis import RedisTransport, encoded

if TYPE_CHECKING:
    from tests.servers import Server

QUEUE = "orders"


class Bench:
    """A transport on a private server, with an owner `w` that is alive."""

    def __init__(self, server: Server, prefix: str = "") -> None:
        self.client = server.client
        self.keys = Keys(prefix)
        self.transport = RedisTransport(self.client, self.keys)
        self.transport.register("w", {"worker": "w@test"})
        self.receive_script = Script("receive")
        self.calls = 0

    def publish(self, *bodies: str, priority: int = 0, queue: str = QUEUE) -> None:
        """Publish messages as kombu does, the first one first."""
        for body in bodies:
            raw = json.dumps({"body": body, "headers": {"id": body}, "properties": {"priority": priority}})
            self.client.lpush(self.keys.list(self.keys.list_name(queue, priority)), raw)

    def receive(
        self,
        budget: int = 10,
        *,
        number: int | None = None,
        token: str = "w",  # noqa: S107 - no password
        queues: tuple[str, ...] = (QUEUE,),
        room: int = 10**6,
        most_armed: int = 16,
    ) -> list[Any]:
        """Call the script as the channel does; its answer."""
        keys = self.keys
        self.calls = self.calls + 1 if number is None else number
        fixed = [keys.unacked, keys.unacked_index, keys.received(token), keys.leases]
        lists = [keys.list(keys.list_name(queue, step)) for step in keys.priority_steps for queue in queues]
        suffixes = [unacked_suffix(queue) for queue in queues]
        args = [token, self.calls, budget, room, len(queues), most_armed, 10_000, *suffixes]
        answer = self.receive_script(self.client, [*fixed, *map(keys.armed, queues), *lists], args)
        return list(answer)

    def bodies(self, answer: list[Any]) -> list[str]:
        """The bodies of the messages that were received."""
        raws = [answer[at + 2] if answer[at + 1] else split_unacked(answer[at + 2])[0] for at in range(3, len(answer), 3)]
        return [json.loads(raw)["body"] for raw in raws]

    def take(self, body: str = "a") -> str:
        """Publish and receive one message; its tag."""
        self.publish(body)
        return str(self.receive(1)[3].decode())

    def waiting(self, name: str = QUEUE) -> list[str]:
        """What lies in a list, the next to be taken first."""
        return [json.loads(raw)["body"] for raw in reversed(self.client.lrange(self.keys.list(name), 0, -1))]

    @property
    def events(self) -> list[Event]:
        """The outcome log."""
        return entries(self.client.xrange(self.keys.outcomes))


@pytest.fixture
def bench(any_server: Server) -> Bench:
    """A bench on each kind of server."""
    return Bench(any_server)


def event(outcome: Outcome, **more: Any) -> Event:
    """An event about the message."""
    return Event(task_id="a", outcome=outcome, queue=QUEUE, **more)


def message(body: str = "a") -> bytes:
    """What a transition moves."""
    return json.dumps({"body": body}).encode()


def test_receive_takes_in_the_order_of_publication_and_holds_what_it_takes(bench: Bench) -> None:
    """The oldest is first; each is in `unacked` under a minted tag, to be restored to its queue alone."""
    bench.publish("a", "b", "c")
    answer = bench.receive(2)
    assert bench.bodies(answer) == ["a", "b"]
    assert [answer[3], answer[6]] == [b"w:1", b"w:2"]
    assert bench.waiting() == ["c"]
    raw, exchange, queue = json.loads(bench.client.hget("unacked", "w:1"))
    assert (raw["body"], exchange, queue) == ("a", "", QUEUE)


def test_held_messages_are_hidden_from_plain_workers_sweeps_for_a_day(bench: Bench) -> None:
    """The score in kombu's index lies a day ahead of the server's clock."""
    tag = bench.take()
    assert bench.client.zscore("unacked_index", tag) == pytest.approx(time.time() + 86_400, abs=60)


def test_receive_takes_the_most_urgent_first_and_one_of_each_queue_in_turn(bench: Bench) -> None:
    """Priority 0 is kombu's most urgent; within a priority no queue starves."""
    bench.publish("slow", priority=9)
    bench.publish("a1", "a2", "a3")
    bench.publish("b1", queue="other")
    assert bench.bodies(bench.receive(4, queues=(QUEUE, "other"))) == ["a1", "b1", "a2", "a3"]
    assert bench.bodies(bench.receive(4)) == ["slow"]


@pytest.mark.parametrize("budget", [2, 3, 4])
def test_receive_keeps_its_budget(bench: Bench, budget: int) -> None:
    """At one below, exactly and one above what is there."""
    bench.publish("a", "b", "c")
    assert len(bench.bodies(bench.receive(budget))) == min(budget, 3)


def test_receive_stops_after_the_message_that_passes_the_byte_bound(bench: Bench) -> None:
    """One message always goes through, however large it is."""
    bench.publish("x" * 500, "b")
    assert len(bench.bodies(bench.receive(10, room=100))) == 1
    assert bench.waiting() == ["b"]


def test_a_repeated_number_returns_the_same_batch(bench: Bench) -> None:
    """A reply that was lost on its way is asked for again, and nothing more is taken."""
    bench.publish("a", "b", "c")
    first = bench.receive(2)
    bench.transport.acknowledge("w:1", None)
    again = bench.receive(2, number=1)
    assert bench.bodies(first) == ["a", "b"]
    assert bench.bodies(again) == ["b"]
    assert bench.waiting() == ["c"]


def test_an_overtaken_number_returns_nothing(bench: Bench) -> None:
    """A request that comes late takes nothing for a reader that has gone."""
    bench.publish("a")
    bench.receive(1, number=1)
    bench.receive(1, number=2)
    bench.publish("b")
    assert bench.receive(1, number=1)[0] == b"stale"
    assert bench.waiting() == ["b"]


def test_a_fenced_owner_is_given_nothing(bench: Bench) -> None:
    """Its lease is gone: it must take a new token first."""
    bench.publish("a")
    assert bench.transport.fence("w", b"0")
    assert bench.receive(1)[0] == b"fenced"
    assert bench.waiting() == ["a"]


def test_garbage_is_received_as_bytes(bench: Bench) -> None:
    """The script never decodes, so what cannot be decoded does not stop it."""
    bench.client.lpush(QUEUE, b"\xff\x00{not json")
    assert bench.receive(1)[5] == b"\xff\x00{not json"


def test_an_empty_receive_arms_a_push_for_at_most_so_many_owners(bench: Bench) -> None:
    """The first owners are woken by the server; the others must ask."""
    bench.transport.register("v", {})
    assert bench.receive(1, number=1, token="w", most_armed=1)[2] == 1
    assert bench.receive(1, number=1, token="v", most_armed=1)[2] == 0
    assert bench.receive(1, number=2, token="w", most_armed=1)[2] == 1


def test_a_message_that_cannot_be_held_stays_in_its_list(bench: Bench) -> None:
    """Where the record fails, the message is put back in the same step."""
    bench.publish("a")
    bench.client.set("unacked", "not a hash")
    with pytest.raises(ResponseError):
        bench.receive(1)
    assert bench.waiting() == ["a"]


def test_acknowledge_ends_and_records_in_one_step(bench: Bench) -> None:
    """The message is held nowhere, and the log says how it ended."""
    tag = bench.take()
    assert bench.transport.acknowledge(tag, event(Outcome.SUCCEEDED)) is Answer.DONE
    assert not bench.client.exists("unacked", "unacked_index")
    assert [(each.task_id, each.outcome) for each in bench.events] == [("a", "succeeded")]


def test_a_repeated_transition_is_answered_already_and_records_nothing(bench: Bench) -> None:
    """Asking again after a lost answer is harmless."""
    tag = bench.take()
    bench.transport.acknowledge(tag, event(Outcome.SUCCEEDED))
    assert bench.transport.acknowledge(tag, event(Outcome.SUCCEEDED)) is Answer.ALREADY
    assert len(bench.events) == 1


@pytest.mark.parametrize("transition", ["acknowledge", "defer", "dead_letter"])
def test_what_was_given_to_another_is_refused(bench: Bench, transition: str) -> None:
    """A stalled worker that wakes changes nothing that is no longer its own."""
    tag = bench.take()
    bench.transport.fence("w", b"0")
    bench.transport.release([Held(tag, QUEUE, QUEUE, message(), 0)])
    late = {
        "acknowledge": lambda: bench.transport.acknowledge(tag, event(Outcome.SUCCEEDED)),
        "defer": lambda: bench.transport.defer(
            tag, QUEUE, message(), task_id="a", event=event(Outcome.REDELIVERY_SCHEDULED), delay_ms=0
        ),
        "dead_letter": lambda: bench.transport.dead_letter(
            tag, message(), dead_letter_queue="DLQ", queue=QUEUE, event=event(Outcome.DEAD_LETTERED)
        ),
    }
    assert late[transition]() is Answer.REFUSED
    assert (bench.waiting(), bench.waiting("DLQ"), bench.events) == (["a"], [], [])


def test_defer_holds_the_message_until_it_is_due_by_the_servers_clock(bench: Bench) -> None:
    """It waits in the delay store, not in the list, and the log says until when."""
    tag = bench.take()
    before = bench.transport.now_ms()
    bench.transport.defer(tag, QUEUE, message(), task_id="a", event=event(Outcome.REDELIVERY_SCHEDULED), delay_ms=300)
    assert bench.transport.promote(10)[0] == 0
    (recorded,) = bench.events
    assert recorded.delay_ms == 300
    assert recorded.due_ms is not None
    assert before + 300 <= recorded.due_ms <= bench.transport.now_ms() + 300
    while not bench.transport.promote(10)[0]:
        assert bench.transport.now_ms() <= recorded.due_ms + 50
    assert bench.transport.now_ms() >= recorded.due_ms
    assert bench.waiting() == ["a"]
    assert not bench.client.keys("redelivery:delayed*")


@pytest.mark.parametrize(("first", "order"), [(True, ["a", "b"]), (False, ["b", "a"])])
def test_defer_without_delay_goes_straight_back(bench: Bench, *, first: bool, order: list[str]) -> None:
    """To where it was taken from, or behind the others."""
    tag = bench.take()
    bench.publish("b")
    bench.transport.defer(tag, QUEUE, message(), task_id="a", event=None, delay_ms=0, first=first)
    assert bench.waiting() == order


def test_promote_moves_the_earliest_first_and_no_more_than_its_bound(bench: Bench) -> None:
    """Each call is bounded; the answer says how long there is nothing to do."""
    soon = bench.transport.now_ms() + 200
    for body in "cab":
        bench.transport.defer(bench.take(body), QUEUE, message(body), task_id=body, event=None, due_ms=soon + ord(body))
    while bench.transport.now_ms() <= soon + ord("c"):
        time.sleep(0.01)  # the server's clock must pass the due times
    assert bench.transport.promote(2)[0] == 2
    assert bench.waiting() == ["a", "b"]
    assert bench.transport.promote(2)[0] == 1
    assert bench.transport.promote(2) == (0, 0, None)


def test_promote_says_what_is_missing(bench: Bench) -> None:
    """An id without its message is counted, and does not stop the others."""
    for body in "ab":
        bench.transport.defer(bench.take(body), QUEUE, message(body), task_id=body, event=None, delay_ms=1)
    name = "redelivery:delayed:messages:orders"
    lost = next(key for key in bench.client.hkeys(name) if key.startswith(b"a"))
    bench.client.hdel(name, lost)
    time.sleep(0.01)  # the server's clock must pass the due times
    assert bench.transport.promote(10)[:2] == (1, 1)
    assert bench.waiting() == ["b"]


def test_dead_letter_moves_to_the_queue_and_remembers_its_origin(bench: Bench) -> None:
    """The letter lies in kombu's own kind of list."""
    tag = bench.take()
    recorded = event(Outcome.DEAD_LETTERED, reason=Reason.EXHAUSTED)
    answer = bench.transport.dead_letter(tag, message(), dead_letter_queue="DLQ.orders", queue=QUEUE, event=recorded)
    assert answer is Answer.DONE
    assert bench.waiting("DLQ.orders") == ["a"]
    assert bench.client.hget("redelivery:dead_letter_queues", "DLQ.orders") == b"orders"
    assert bench.events[0].reason == "exhausted"


def test_release_restores_the_order(bench: Bench) -> None:
    """What was not run is taken next again, as it was."""
    bench.publish("a", "b", "c")
    answer = bench.receive(2)
    held = [Held(answer[at].decode(), QUEUE, QUEUE, answer[at + 2], 0) for at in (3, 6)]
    assert bench.transport.release(held) == 2
    assert bench.waiting() == ["a", "b", "c"]
    assert bench.transport.release(held) == 0


def test_redrive_moves_a_letter_once(bench: Bench) -> None:
    """A second operator finds it gone."""
    tag = bench.take()
    bench.transport.dead_letter(tag, message(), dead_letter_queue="DLQ", queue=QUEUE, event=event(Outcome.DEAD_LETTERED))
    redriven = event(Outcome.REDRIVEN, generation=1)
    assert bench.transport.redrive("DLQ", message(), QUEUE, message("again"), redriven) is Answer.DONE
    assert bench.transport.redrive("DLQ", message(), QUEUE, message("again"), redriven) is Answer.ALREADY
    assert (bench.waiting(), bench.waiting("DLQ")) == (["again"], [])
    assert [each.outcome for each in bench.events] == ["dead_lettered", "redriven"]


def test_only_a_counter_that_stood_still_is_fenced(bench: Bench) -> None:
    """Between the look and the deed the owner may have renewed."""
    assert bench.transport.renew("w")
    assert not bench.transport.fence("w", b"0")
    assert bench.transport.fence("w", b"1")
    assert not bench.transport.renew("w")


def test_a_start_is_recorded_only_for_what_is_held(bench: Bench) -> None:
    """A message that was given to another must not run here."""
    tag = bench.take()
    assert bench.transport.start(tag) is Answer.DONE
    assert bench.transport.started([tag, "w:99"]) == [True, False]
    bench.transport.acknowledge(tag, None)
    assert bench.transport.start(tag) is Answer.REFUSED
    assert not bench.client.exists("redelivery:starts")


def test_every_name_carries_the_prefix(any_server: Server) -> None:
    """Two apps on one database do not see each other."""
    bench = Bench(any_server, "shop-")
    tag = bench.take()
    bench.receive(1)
    bench.transport.defer(tag, QUEUE, message(), task_id="a", event=event(Outcome.REDELIVERY_SCHEDULED), delay_ms=50)
    tag = bench.take("b")
    bench.transport.dead_letter(tag, message("b"), dead_letter_queue="DLQ", queue=QUEUE, event=event(Outcome.DEAD_LETTERED))
    assert all(name.startswith(b"shop-") for name in bench.client.keys("*"))


def test_a_full_server_still_lets_messages_end_and_move(bench: Bench) -> None:
    """With `maxmemory` reached a publication is refused; whatever ends or moves a message is carried out."""
    tags = [bench.take(body) for body in "abcd"]
    bench.publish("e")
    bench.client.config_set("maxmemory-policy", "noeviction")
    bench.client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        Script("publish")(bench.client, ["redelivery:outcomes", QUEUE], [message("x"), "", *encoded(event(Outcome.PUBLISHED))])
    assert bench.bodies(bench.receive(1)) == ["e"]
    assert bench.transport.acknowledge(tags[0], event(Outcome.SUCCEEDED)) is Answer.DONE
    moved = event(Outcome.REDELIVERY_SCHEDULED)
    assert bench.transport.defer(tags[1], QUEUE, message("b"), task_id="b", event=moved, delay_ms=1) is Answer.DONE
    dead = event(Outcome.DEAD_LETTERED)
    answer = bench.transport.dead_letter(tags[2], message("c"), dead_letter_queue="DLQ", queue=QUEUE, event=dead)
    assert answer is Answer.DONE
    time.sleep(0.01)  # the server's clock must pass the due time
    assert bench.transport.promote(1)[0] == 1
    assert len(bench.events) == 3
    bench.client.config_set("maxmemory", 0)


def test_a_script_is_loaded_again_after_the_server_forgot_it(bench: Bench) -> None:
    """A restart or SCRIPT FLUSH costs one more call, not a message."""
    tag = bench.take()
    bench.client.script_flush()
    assert bench.transport.acknowledge(tag, None) is Answer.DONE
