"""The transitions on Redis, each against a real server: moves, records, refusals, and the behaviour of a full server."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError
from structlog.testing import capture_logs

from redelivery.middleware.brokers.redis.scripts import Script, encoded
from redelivery.middleware.messages.events import Event, Outcome, Reason
from redelivery.middleware.ports import Answer, Held
from tests.support.bench import QUEUE, Bench
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import Server


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


def test_acknowledge_ends_and_records_in_one_step(bench: Bench) -> None:
    """Afterwards the message is held nowhere, and the log says how it ended."""
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
    """A stalled worker that wakes up cannot change messages that belong to another worker now."""
    tag = bench.take()
    bench.transport.leases.fence("w", b"0")
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
    assert bench.transport.stores.promote(10)[0] == 0
    (recorded,) = bench.events
    assert recorded.delay_ms == 300
    assert recorded.due_ms is not None
    assert before + 300 <= recorded.due_ms <= bench.transport.now_ms() + 300
    asked = bench.transport.now_ms()
    while not bench.transport.stores.promote(10)[0]:
        assert asked < recorded.due_ms, "it was due when it was asked for"
        asked = bench.transport.now_ms()
    assert bench.transport.now_ms() >= recorded.due_ms
    assert bench.waiting() == ["a"]
    assert not bench.client.keys("redelivery:delayed*")


@pytest.mark.parametrize(("first", "order"), [(True, ["a", "b"]), (False, ["b", "a"])])
def test_defer_without_delay_goes_straight_back(bench: Bench, *, first: bool, order: list[str]) -> None:
    """It goes to the head of its list, or behind the others."""
    tag = bench.take()
    bench.publish("b")
    bench.transport.defer(tag, QUEUE, message(), task_id="a", event=None, delay_ms=0, first=first)
    assert bench.waiting() == order


def test_promote_moves_the_earliest_first_and_no_more_than_its_bound(bench: Bench) -> None:
    """Each call is bounded; the answer says how long nothing is due."""
    later = bench.transport.now_ms() + 60_000
    for body in "cab":
        bench.transport.defer(bench.take(body), QUEUE, message(body), task_id=body, event=None, due_ms=later + ord(body))
    bench.transport.stores.advance(61_000, aged=lambda raw: raw)
    assert bench.transport.stores.promote(2)[0] == 2
    assert bench.waiting() == ["a", "b"]
    assert bench.transport.stores.promote(2)[0] == 1
    assert bench.transport.stores.promote(2) == (0, 0, None)


def test_promote_says_what_is_missing(bench: Bench) -> None:
    """An id without its message is counted, and does not stop the others."""
    for body in "ab":
        bench.transport.defer(bench.take(body), QUEUE, message(body), task_id=body, event=None, delay_ms=1)
    name = "redelivery:delayed:messages:orders"
    lost = next(key for key in bench.client.hkeys(name) if key.startswith(b"a"))
    bench.client.hdel(name, lost)
    bench.let_pass(1)
    assert bench.transport.stores.promote(10)[:2] == (1, 1)
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
    """Messages that did not run are taken next again, unchanged."""
    bench.publish("a", "b", "c")
    answer = bench.receive(2)
    held = [Held(answer[at].decode(), QUEUE, QUEUE, answer[at + 2], 0) for at in (4, 7)]
    assert bench.transport.release(held) == 2
    assert bench.waiting() == ["a", "b", "c"]
    assert bench.transport.release(held) == 0


def test_redrive_moves_a_letter_once(bench: Bench) -> None:
    """A second operator finds it gone."""
    tag = bench.take()
    bench.transport.dead_letter(tag, message(), dead_letter_queue="DLQ", queue=QUEUE, event=event(Outcome.DEAD_LETTERED))
    moves = [(message(), QUEUE, message("again"), event(Outcome.REDRIVEN, generation=1))]
    assert bench.transport.stores.redrive_many("DLQ", moves) == [Answer.DONE]
    assert bench.transport.stores.redrive_many("DLQ", moves) == [Answer.ALREADY]
    assert (bench.waiting(), bench.waiting("DLQ")) == (["again"], [])
    assert [each.outcome for each in bench.events] == ["dead_lettered", "redriven"]


def test_only_a_counter_that_stood_still_is_fenced(bench: Bench) -> None:
    """The owner may have renewed its lease after the check and before the fence."""
    assert bench.transport.leases.renew("w")
    assert not bench.transport.leases.fence("w", b"0")
    assert bench.transport.leases.fence("w", b"1")
    assert not bench.transport.leases.renew("w")


def test_a_start_is_recorded_only_for_what_is_held(bench: Bench) -> None:
    """A message that belongs to another worker must not run here."""
    tag = bench.take()
    assert bench.transport.start(tag) is Answer.DONE
    assert [value is not None for value in bench.transport.leases.started([tag, "w:99"])] == [True, False]
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
    """With `maxmemory` reached a publication is refused, but a transition that ends or moves a message is carried out."""
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
    bench.let_pass(1)
    assert bench.transport.stores.promote(1)[0] == 1
    assert len(bench.events) == 3
    bench.client.config_set("maxmemory", 0)


def test_a_script_is_loaded_again_after_the_server_forgot_it(bench: Bench) -> None:
    """After a restart or SCRIPT FLUSH, one more call is needed, and no message is lost."""
    tag = bench.take()
    bench.client.script_flush()
    assert bench.transport.acknowledge(tag, None) is Answer.DONE


# what the server refuses changes nothing


def everything(bench: Bench) -> dict[bytes, Any]:
    """All keys of the broker with their values, except `unacked_index` and `redelivery:delayed`."""
    read = {
        b"string": bench.client.get,
        b"list": lambda name: bench.client.lrange(name, 0, -1),
        b"hash": bench.client.hgetall,
        b"zset": lambda name: bench.client.zrange(name, 0, -1),
        b"stream": bench.client.xrange,
    }
    found = {name: read[bench.client.type(name)](name) for name in bench.client.keys("*")}
    return {name: value for name, value in found.items() if name not in {b"unacked_index", b"redelivery:delayed"}}


def moves(bench: Bench, tag: str) -> dict[str, Any]:
    """Each transition of a held message."""
    moved = event(Outcome.REDELIVERY_SCHEDULED)
    return {
        "acknowledge": lambda: bench.transport.acknowledge(tag, event(Outcome.SUCCEEDED)),
        "dead_letter": lambda: bench.transport.dead_letter(
            tag, message(), dead_letter_queue="DLQ", queue=QUEUE, event=event(Outcome.DEAD_LETTERED)
        ),
        "defer": lambda: bench.transport.defer(tag, "other", message(), task_id="a", event=moved, delay_ms=60_000),
        "requeue": lambda: bench.transport.defer(tag, "other", message(), task_id="a", event=moved, delay_ms=0),
        "put first": lambda: bench.transport.defer(tag, "other", message(), task_id="a", event=moved, delay_ms=0, first=True),
        "release": lambda: bench.transport.release([Held(tag, "other", "other", message(), 0)]),
        "accept": lambda: bench.transport.accept(tag),
    }


@pytest.mark.parametrize(
    ("move", "name"),
    [
        ("acknowledge", "redelivery:outcomes"),
        ("acknowledge", "unacked_index"),
        ("dead_letter", "DLQ"),
        ("dead_letter", "redelivery:dead_letter_queues"),
        ("dead_letter", "redelivery:outcomes"),
        ("defer", "redelivery:delayed"),
        ("defer", "redelivery:delayed:due:other"),
        ("defer", "redelivery:delayed:messages:other"),
        ("defer", "redelivery:delayed:tasks"),
        ("defer", "redelivery:outcomes"),
        ("requeue", "other"),
        ("requeue", "redelivery:outcomes"),
        ("put first", "other"),
        ("put first", "redelivery:outcomes"),
        ("release", "other"),
        ("accept", "redelivery:starts"),
    ],
)
def test_a_key_of_another_type_leaves_the_message_held(bench: Bench, move: str, name: str) -> None:
    """Lua does not roll back, so a script must check before it writes; after the mend the same transition is carried out."""
    tag = bench.take()
    was: Any = bench.client.dump(name)
    bench.client.delete(name)
    bench.client.set(name, "of another type")
    before = everything(bench)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        moves(bench, tag)[move]()
    assert everything(bench) == before
    bench.client.delete(name)
    if was is not None:
        bench.client.restore(name, 0, was)
    assert moves(bench, tag)[move]() in {Answer.DONE, 1}
    assert bench.client.hexists("unacked", tag) == (move == "accept")


def without_right(bench: Bench, command: str) -> Any:
    """A client of a user that may not use this command."""
    bench.client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", f"-{command}")
    return Redis(unix_socket_path=bench.client.connection_pool.connection_kwargs["path"], username="limited", password="-")


@pytest.mark.parametrize(
    ("move", "command"),
    [
        ("acknowledge", "xadd"),
        ("acknowledge", "hdel"),
        ("dead_letter", "lpush"),
        ("dead_letter", "xadd"),
        ("dead_letter", "hdel"),
        ("defer", "zadd"),
        ("defer", "xadd"),
        ("defer", "hdel"),
        ("requeue", "xadd"),
        ("requeue", "hdel"),
        ("put first", "rpush"),
        ("release", "rpush"),
        ("release", "hdel"),
    ],
)
def test_a_command_that_may_not_be_used_leaves_the_message_held(bench: Bench, move: str, command: str) -> None:
    """If the user's rights end in the middle of a script, no message is lost, moved twice or recorded twice."""
    tag = bench.take()
    before = everything(bench)
    bench.transport.client, allowed = without_right(bench, command), bench.transport.client
    with pytest.raises((NoPermissionError, ResponseError)):
        moves(bench, tag)[move]()
    bench.transport.client = allowed
    assert everything(bench) == before
    assert moves(bench, tag)[move]() in {Answer.DONE, 1}


def test_a_publication_that_cannot_be_recorded_is_not_published(bench: Bench) -> None:
    """Otherwise its publisher would try again, and publish twice."""
    bench.publish("a")
    bench.client.set("redelivery:outcomes", "no stream")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        Script("publish")(bench.client, ["redelivery:outcomes", QUEUE], [message("b"), "", *encoded(event(Outcome.PUBLISHED))])
    assert bench.waiting() == ["a"]


def test_a_list_of_another_type_costs_the_batch_nothing(bench: Bench) -> None:
    """The other lists are emptied as usual. If it is the only list, the call is an error, and takes nothing under that number."""
    bench.publish("a1", "a2")
    bench.publish("c")
    bench.publish("slow", priority=9)
    bench.client.set("other", "no list")
    assert bench.bodies(bench.receive(2, queues=(QUEUE, "other"))) == ["a1", "a2"]
    assert bench.bodies(bench.receive(10, queues=(QUEUE, "other"))) == ["c", "slow"]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.receive(10, queues=(QUEUE, "other"))
    bench.client.delete("other")
    bench.publish("d", queue="other")
    assert bench.bodies(bench.receive(10, number=bench.calls, queues=(QUEUE, "other"))) == ["d"]
    assert bench.client.hlen("unacked") == 5


@pytest.mark.parametrize("name", ["unacked", "unacked_index", "redelivery:received:w"])
def test_what_cannot_be_recorded_as_held_stays_in_its_list(bench: Bench, name: str) -> None:
    """No message of the batch is taken, and its number can be used for the next call."""
    bench.publish("a", "b")
    bench.client.set(name, "of another type")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.receive(2)
    bench.client.delete(name)
    assert bench.bodies(bench.receive(2, number=1)) == ["a", "b"]


def test_promote_leaves_a_destination_alone_whose_list_is_of_another_type(bench: Bench) -> None:
    """Messages for that queue wait, the others move, and promotion does not retry them in a loop."""
    for body, where in (("a", "broken"), ("b", QUEUE)):
        bench.transport.defer(bench.take(body), where, message(body), task_id=body, event=None, delay_ms=1)
    bench.client.set("broken", "no list")
    bench.let_pass(1)
    with capture_logs() as lines:
        moved, missing, wait = bench.transport.stores.promote(10)
    assert (moved, missing, bench.waiting()) == (1, 0, ["b"])
    assert wait is not None
    assert wait > 0.5
    assert [line["event"] for line in lines] == ["delayed.refused"]
    bench.client.delete("broken")
    until(lambda: bench.transport.stores.promote(10)[0], what="the destination to be asked again")
    assert bench.waiting("broken") == ["a"]
    assert not bench.client.exists("redelivery:delayed:tasks")


@pytest.mark.parametrize("command", ["hdel", "zrem", "lpush"])
def test_promote_moves_nothing_that_it_may_not_remove(bench: Bench, command: str) -> None:
    """Otherwise the message would be moved again each second."""
    bench.transport.defer(bench.take(), QUEUE, message(), task_id="a", event=None, delay_ms=1)
    bench.let_pass(1)
    before = everything(bench)
    bench.transport.stores.client, allowed = without_right(bench, command), bench.transport.stores.client
    with suppress(ResponseError):
        bench.transport.stores.promote(10)
    bench.transport.stores.client = allowed
    assert everything(bench) == before
    until(lambda: bench.transport.stores.promote(10)[0], what="the message to be moved")
    assert bench.waiting() == ["a"]


@pytest.mark.parametrize(
    ("move", "command"),
    [
        ("cancel", "hdel"),
        ("cancel", "zrem"),
        ("cancel", "xadd"),
        ("hand back", "hdel"),
        ("hand back", "zrem"),
        ("hand back", "lpush"),
        ("reschedule", "hdel"),
        ("reschedule", "hset"),
        ("reschedule", "zadd"),
        ("reschedule", "xadd"),
    ],
)
def test_a_command_that_may_not_be_used_leaves_a_delayed_message_waiting(bench: Bench, move: str, command: str) -> None:
    """An operator whose rights end in the middle of a script loses no message, and records nothing that did not happen."""
    bench.transport.defer(bench.take(), QUEUE, message(), task_id="a", event=None, delay_ms=60_000)
    (raw,) = bench.client.zrange(bench.transport.keys.due(QUEUE), 0, -1)
    before, ident, stores = everything(bench), raw.decode(), bench.transport.stores
    stores.client = without_right(bench, command)
    moves: dict[str, Callable[[], Any]] = {
        "cancel": lambda: stores.cancel(QUEUE, ident, event(Outcome.REVOKED)),
        "hand back": lambda: stores.hand_back(QUEUE, ident, message()),
        "reschedule": lambda: stores.reschedule(QUEUE, ident, message("b"), event(Outcome.REDELIVERY_SCHEDULED), due_ms=None),
    }
    with pytest.raises((NoPermissionError, ResponseError)):
        moves[move]()
    assert everything(bench) == before


@pytest.mark.parametrize("name", [QUEUE, "redelivery:outcomes"])
def test_a_redrive_that_cannot_end_leaves_the_letter_where_it_was(bench: Bench, name: str) -> None:
    """It keeps its place among the others, and nothing is recorded."""
    letters = [message(body) for body in "abc"]
    bench.client.rpush("DLQ", *letters)
    bench.client.set(name, "of another type")
    (error,) = bench.transport.stores.redrive_many("DLQ", [(letters[1], QUEUE, message("again"), event(Outcome.REDRIVEN))])
    assert isinstance(error, ResponseError)
    assert "WRONGTYPE" in str(error)
    assert bench.client.lrange("DLQ", 0, -1) == letters


def test_release_gives_back_the_others(bench: Bench) -> None:
    """One list of another type does not hold up the messages of the other lists."""
    tags = [bench.take(body) for body in "ab"]
    bench.client.set("other", "no list")
    held = [Held(tag, where, where, message(body), 0) for tag, where, body in zip(tags, (QUEUE, "other"), "ab", strict=True)]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.transport.release(held)
    assert (bench.waiting(), bench.client.hkeys("unacked")) == (["a"], [tags[1].encode()])


@pytest.mark.parametrize("name", ["redelivery:recovering", "redelivery:owners"])
def test_an_owner_is_fenced_or_registered_whole_or_not_at_all(bench: Bench, name: str) -> None:
    """A fenced owner is marked for recovery, and a new one is registered as an owner, in the same step."""
    bench.client.delete(name)
    bench.client.set(name, "of another type")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bench.transport.leases.fence("w", b"0") if name.endswith("recovering") else bench.transport.leases.register("v", {})
    assert bench.client.hgetall("redelivery:leases") == {b"w": b"0"}


def test_a_full_server_lets_an_event_alone_through(bench: Bench) -> None:
    """Otherwise the worker that could empty it would wait for an arrival that cannot be recorded."""
    bench.client.config_set("maxmemory-policy", "noeviction")
    bench.client.config_set("maxmemory", 1)
    assert bench.transport.acknowledge("", event(Outcome.RECEIVED)) is Answer.DONE
    bench.client.config_set("maxmemory", 0)
