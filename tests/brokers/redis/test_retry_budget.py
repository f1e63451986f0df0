"""The retry budget of a queue: its slots are compared with a pure model, each step on a real server."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from redelivery.errors import ConfigurationError
from redelivery.middleware.messages.envelope import ANNOUNCED
from redelivery.middleware.messages.events import Event, Outcome
from redelivery.middleware.messages.steps import sealed
from redelivery.middleware.policy.resolver import Pace
from redelivery.middleware.ports import Answer
from redelivery.settings import RedeliveryPolicy, RedeliverySettings
from redelivery.workers.duties.recoverer import Recoverer
from tests.support.desk import QUEUE, Desk, each_desk, task_message

if TYPE_CHECKING:
    from tests.support.servers import Server

__all__ = ["each_desk"]

HOUR = 3_600_000
#: One in a thousand seconds: longer than any test.
SELDOM, GAP = 0.001, 1_000_000
SLOTS = f"redelivery:slots:{SELDOM!r}:{QUEUE}"
#: Whole milliseconds; so many in a second.
GAPS = {1: 1000.0, 4: 250.0, 10: 100.0, 125: 8.0, 1000: 1.0}


def hold(desk: Desk) -> str:
    """Publish and receive a message; its tag."""
    desk.publish(task_message("a"))
    return desk.hold()


def send_back(desk: Desk, pace: Pace | None, tag: str = "", **when: Any) -> Answer:
    """Have a message delivered again: the one with this tag, or a new one."""
    event = Event(task_id="a", outcome=Outcome.REDELIVERY_SCHEDULED, queue=QUEUE)
    when = when or {"delay_ms": 0}
    return desk.transport.defer(tag or hold(desk), QUEUE, sealed(task_message("a")), task_id="a", event=event, pace=pace, **when)


def due_of(desk: Desk, pace: Pace | None, **when: Any) -> int:
    """When a message that is sent back now is due, as the outcome log says."""
    assert send_back(desk, pace, **when) is Answer.DONE
    due = desk.events[-1].due_ms
    assert due is not None
    desk.client.delete(desk.keys.outcomes)
    return due


# the rule


def first_free(taken: list[int], due: int, gap: int) -> int:
    """The rule without a broker: the earliest time from `due` on that is at least one slot away from all taken times."""
    found = [due, *(each + gap for each in taken)]
    return min(at for at in found if at >= due and all(abs(at - each) >= gap for each in taken))


_names = itertools.count()


@settings(
    max_examples=150,
    phases=(Phase.explicit, Phase.generate),  # an example is short, and each try asks a server
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(gap=st.sampled_from(sorted(GAPS)), quarters=st.lists(st.integers(0, 24), min_size=1, max_size=16))
@example(gap=1000, quarters=[0, 8, 4, 4, 0, 0, 24, 1])
@example(gap=1000, quarters=[0, 5, 0, 16, 19, 12])
def test_each_gets_the_first_free_slot_from_its_own_due_time_on(desk: Desk, gap: int, quarters: list[int]) -> None:
    """Never early, never closer than one slot to another, and no later than necessary, in any order of arrival."""
    base, taken = desk.transport.now_ms() + HOUR, list[int]()
    pace = Pace(f"{QUEUE}-{next(_names)}", GAPS[gap])
    for each in quarters:
        own = base + each * max(gap // 4, 1)
        taken.append(first_free(taken, own, gap))
        assert due_of(desk, pace, due_ms=own) == taken[-1]


@pytest.mark.parametrize("per_second", [0.3, 3, 7, 1234.5])
def test_a_slot_that_is_no_whole_millisecond_is_as_long_as_it_is(desk: Desk, per_second: float) -> None:
    """The rate is exact over many slots; each due time is rounded up, so that none is early."""
    base, pace = desk.transport.now_ms() + HOUR, Pace(QUEUE, per_second)
    dues = [due_of(desk, pace, due_ms=base) for _ in range(60)]
    assert dues == pytest.approx([base + number * 1000 / per_second for number in range(60)], abs=1.01, rel=0)
    assert all(due >= base + number * 1000 / per_second - 0.1 for number, due in enumerate(dues))


# one step of the broker's


def test_what_failed_at_once_comes_back_one_by_one(desk: Desk) -> None:
    """The first goes straight to its list, and each other one a slot later; the log has these times."""
    pace = Pace(QUEUE, SELDOM)
    for _ in range(4):
        send_back(desk, pace)
    first, *others = (event.due_ms or 0 for event in desk.events)
    assert others == [first + number * GAP for number in (1, 2, 3)]
    assert [(event.delay_ms or 0) > 0 for event in desk.events] == [False, True, True, True]
    assert (len(desk.messages()), desk.client.zcard(desk.keys.due(QUEUE))) == (1, 3)


def test_a_long_delay_does_not_keep_a_short_one_waiting(desk: Desk) -> None:
    """Slots between the taken ones are free, also if a clock that was set back has left slots in the future."""
    pace = Pace(QUEUE, SELDOM)
    late = due_of(desk, pace, delay_ms=3 * HOUR)
    assert due_of(desk, pace) <= desk.transport.now_ms() < late
    assert due_of(desk, pace, due_ms=late) == late + GAP


def test_without_a_budget_nothing_of_it_is_there(desk: Desk) -> None:
    """There is no key and no wait."""
    dues = [due_of(desk, None) for _ in range(3)]
    assert dues[-1] <= desk.transport.now_ms()
    assert not desk.client.keys("*slots*")


def test_a_budget_that_is_changed_begins_with_free_slots(desk: Desk) -> None:
    """Otherwise a raised budget would wait for the old one's slots; queues do not share slots either."""
    taken = [due_of(desk, Pace(QUEUE, SELDOM)) for _ in range(3)]
    assert taken[-1] == taken[0] + 2 * GAP
    for other in (Pace(QUEUE, 2 * SELDOM), Pace("other", SELDOM)):
        assert due_of(desk, other) <= desk.transport.now_ms()


def test_what_expires_before_its_slot_takes_none(desk: Desk) -> None:
    """It waits until it expires, and the next message gets the slot. A message that expires after its slot takes it."""
    first = due_of(desk, Pace(QUEUE, SELDOM))
    for latest in (first + GAP - 1, first + GAP):
        assert due_of(desk, Pace(QUEUE, SELDOM, latest)) == latest
    assert due_of(desk, Pace(QUEUE, SELDOM)) == first + 2 * GAP


def test_a_budget_of_next_to_nothing_loses_nothing(desk: Desk) -> None:
    """A slot of more than a hundred years counts as a hundred years, so that calendars can hold the date."""
    dues = [due_of(desk, Pace(QUEUE, 1e-300)) for _ in range(4)]
    assert dues == sorted(dues)
    assert dues[-1] <= desk.transport.now_ms() + 101 * 366 * 86_400_000


def test_a_repeat_takes_no_second_slot(desk: Desk) -> None:
    """A transition whose answer was lost is sent again, and keeps its slot."""
    pace, tag = Pace(QUEUE, SELDOM), hold(desk)
    assert [send_back(desk, pace, tag) for _ in range(2)] == [Answer.DONE, Answer.ALREADY]
    assert due_of(desk, pace) < desk.transport.now_ms() + GAP + 1


def test_the_slots_go_when_they_are_over(desk: Desk) -> None:
    """Past slots are removed at the next look, and the key expires a minute after its last slot."""
    pace, now = Pace(QUEUE, SELDOM), desk.transport.now_ms()
    past = {f"{now - at}": now - at + 1 for at in range(1000, 1150)}
    desk.client.zadd(SLOTS, past)
    due_of(desk, pace)
    assert desk.client.zcard(SLOTS) == 50  # the last of them was made longer
    due = due_of(desk, pace)
    assert desk.client.zcard(SLOTS) == 1
    assert due < desk.transport.now_ms() + desk.client.pttl(SLOTS) <= due + GAP + 60_010


def test_a_prefix_is_kept_to(any_server: Server) -> None:
    """The slots are stored below it, as every key is."""
    desk = Desk(any_server, prefix="shop:")
    due_of(desk, Pace(QUEUE, SELDOM))
    assert desk.client.exists(f"shop:{SLOTS}")
    names: Any = desk.client.keys("*")
    assert all(name.startswith(b"shop:") for name in names)
    desk.transport.close()


def test_a_full_server_paces_too(desk: Desk) -> None:
    """The first write of the script frees memory, so that it runs to its end."""
    tags = [hold(desk) for _ in range(2)]
    desk.client.config_set("maxmemory", 1)
    assert [send_back(desk, Pace(QUEUE, SELDOM), tag) for tag in tags] == [Answer.DONE, Answer.DONE]
    desk.client.config_set("maxmemory", 0)
    assert desk.events[-1].due_ms == (desk.events[0].due_ms or 0) + GAP


@pytest.mark.parametrize("broken", ["redelivery:outcomes", SLOTS, f"redelivery:delayed:messages:{QUEUE}"])
def test_a_slot_is_given_back_where_the_message_cannot_move(desk: Desk, broken: str) -> None:
    """The message stays held, and the slots are unchanged; after the mend it takes the slot that it would have had."""
    pace, base = Pace(QUEUE, SELDOM), desk.transport.now_ms() + HOUR
    for at in (0, 3):  # the gap is too short for two slots, and closes after the next one
        due_of(desk, pace, due_ms=base + at * GAP)
    desk.client.expire(SLOTS, 9999)
    kept, tag, before = desk.client.dump(broken), hold(desk), desk.client.zrange(SLOTS, 0, -1, withscores=True)
    desk.client.delete(broken)
    desk.client.set(broken, "of another type")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        send_back(desk, pace, tag, due_ms=base + GAP + 5)
    assert desk.client.hexists(desk.keys.unacked, tag)
    desk.client.delete(broken)
    if kept is not None:
        desk.client.restore(broken, 0, kept)
    assert desk.client.zrange(SLOTS, 0, -1, withscores=True) == before
    assert send_back(desk, pace, tag, due_ms=base + GAP + 5) is Answer.DONE
    assert desk.events[-1].due_ms == base + GAP + 5


def test_a_user_who_may_not_take_slots_loses_nothing(desk: Desk) -> None:
    """If its rights end in the middle of the script, the message stays held, and nothing else is changed."""
    tag, pool = hold(desk), desk.client.connection_pool.connection_kwargs
    desk.client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-pexpire")
    allowed, desk.transport.client = desk.client, Redis(unix_socket_path=pool["path"], username="limited", password="-")
    with pytest.raises((NoPermissionError, ResponseError)):
        send_back(desk, Pace(QUEUE, SELDOM), tag)
    desk.transport.client = allowed
    assert desk.client.hexists(desk.keys.unacked, tag)
    assert not desk.client.exists(SLOTS, QUEUE, desk.keys.outcomes)


# whose budget it is


def test_a_budget_is_a_queues() -> None:
    """It is set by queue patterns, as all settings are; a task's row cannot set it."""
    rows = {"queues": {"orders.#": {"redeliveries_per_second": 5}}, "tasks": {"#": {"redeliveries_per_second": 1}}}
    loaded = RedeliverySettings.load(rows)
    assert [loaded.policy_for(name).policy.redeliveries_per_second for name in ("orders.new", "mails")] == [5.0, None]
    assert RedeliveryPolicy(redeliveries_per_second="none").redeliveries_per_second is None  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, True, "5", float("nan"), float("inf")])
def test_a_budget_is_a_number_above_nothing(value: Any) -> None:
    """0 would hold every failed message for ever."""
    with pytest.raises(ConfigurationError, match="redeliveries_per_second must be"):
        RedeliveryPolicy(redeliveries_per_second=value)


def test_what_a_dead_worker_had_started_is_paced_and_what_it_had_not_is_not(desk: Desk) -> None:
    """A counted crash is a failed attempt; a message that is given back uncounted has not put load on any downstream service."""
    rows = {"queues": {"#": {"redelivery_delay": 0, "redeliveries_per_second": SELDOM}}}
    desk.install.policies.__dict__["settings"] = RedeliverySettings.load(rows)
    for task_id in ("one", "two", "innocent"):
        message = task_message(task_id)
        message["headers"][ANNOUNCED] = 1
        desk.publish(message)
        tag = desk.hold("dead")
        if task_id != "innocent":
            desk.transport.start(tag)
    assert desk.transport.leases.fence("dead", b"0")
    Recoverer(desk.install).step()
    waits = {event.task_id: (event.delay_ms or 0) > 0 for event in desk.events}
    assert sorted((waits.pop("one"), waits.pop("two"))) == [False, True]
    assert waits == {"innocent": False}
    assert desk.install.policies.pace_of(QUEUE, 7) == Pace(QUEUE, SELDOM, 7)
