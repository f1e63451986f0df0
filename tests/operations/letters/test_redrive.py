"""The redrive: which dead letters go back, in what form, where to, how fast, and what stays if the broker refuses."""

from __future__ import annotations

import base64
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.errors import BrokerError
from redelivery.middleware.messages.events import Outcome
from redelivery.middleware.messages.steps import opened, sealed
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from redelivery.workers.operations.letters.walk import BATCH, WalkOptions
from tests.support.desk import LETTERS, QUEUE, Desk, body_of, copies, each_desk, task_message

if TYPE_CHECKING:
    from tests.support.servers import Server

__all__ = ["each_desk"]

EVERYTHING = Filter()


def test_a_letter_becomes_its_original_message_one_generation_on(desk: Desk) -> None:
    """Body, properties and headers are the original's; attempts start again; the death stays in its history."""
    original = task_message(custom="kept", expires=None)
    task_id = desk.die(original)
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    assert (done.moved, done.matched, dict(done.by_queue), desk.messages(LETTERS)) == (1, 1, {QUEUE: 1}, [])
    [message] = desk.messages()
    envelope = message["headers"].pop("redelivery")
    assert (envelope["generation"], envelope["attempt"], envelope["deaths"][0]["reason"]) == (1, 0, "exhausted")
    assert "failure" not in envelope
    assert (message["body"], message["properties"]) == (original["body"], original["properties"])
    assert message["headers"]["custom"] == "kept"
    event = desk.events[-1]
    assert (event.outcome, event.task_id, event.generation, event.queue, event.task) == ("redriven", task_id, 1, QUEUE, "desk.pack")


def test_a_letter_goes_back_by_its_priority(desk: Desk) -> None:
    """It goes to the list of its original priority."""
    for priority in (0, 3, 5, 9, 12):
        desk.die(task_message(f"p{priority}", priority=priority))
    redrive(desk.transport, LETTERS, EVERYTHING)
    lists = {name: desk.ids(name) for name in desk.keys.list_names(QUEUE)}
    assert list(lists.values()) == [["p0"], ["p3", "p5"], [], ["p9", "p12"]]


@pytest.mark.parametrize("count", [BATCH - 1, BATCH, BATCH + 1, 3 * BATCH + 7])
def test_all_letters_go_back_in_their_order(desk: Desk, count: int) -> None:
    """The oldest letter is the first in its queue; every one is moved and recorded once."""
    ids = copies(desk, count)
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    assert (done.total, done.moved, done.gone) == (count, count, 0)
    assert desk.ids() == ids
    assert [event.task_id for event in desk.events if event.outcome == Outcome.REDRIVEN] == ids


def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    """It gives the same figures as the redrive itself."""
    ids = copies(desk, BATCH + 3)
    before = len(desk.events)
    dry = redrive(desk.transport, LETTERS, EVERYTHING, WalkOptions(dry_run=True))
    assert (dry.moved, dry.matched, desk.ids(LETTERS), desk.messages(), len(desk.events)) == (len(ids), len(ids), ids, [], before)
    wet = redrive(desk.transport, LETTERS, EVERYTHING)
    assert {**wet.to_dict(), "dry_run": True} == dry.to_dict()


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_limit_takes_the_oldest(desk: Desk, limit: int) -> None:
    """No more than so many, and no fewer if there are enough."""
    ids = [desk.die() for _ in range(3)]
    done = redrive(desk.transport, LETTERS, EVERYTHING, WalkOptions(limit=limit))
    assert (done.moved, desk.ids(), desk.ids(LETTERS)) == (min(limit, 3), ids[:limit], ids[limit:])


FILTERS = {
    "ids": (Filter(task_ids=frozenset({"b", "z"})), "b"),
    "reason": (Filter(reasons=frozenset({"worker_lost", "expired"})), "b"),
    "task": (Filter(tasks=("desk.s*",)), "c"),
    "exact task": (Filter(tasks=("desk.pack",)), "abd"),
    "exception": (Filter(exceptions=("TimeoutError",)), "d"),
    "dotted exception": (Filter(exceptions=("http.TimeoutError",)), "d"),
    "part of a class name": (Filter(exceptions=("Error",)), ""),
    "fingerprint": (Filter(fingerprints=("f-http",)), "d"),
    "two conditions": (Filter(tasks=("desk.*",), reasons=frozenset({"worker_lost"})), "b"),
    "none": (Filter(reasons=frozenset({"rejected"})), ""),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_chooses(desk: Desk, name: str) -> None:
    """Those that match go back and the others stay, both in their order."""
    desk.die(task_message("a"))
    desk.die(task_message("b"), reason="worker_lost")
    desk.die(task_message("c", "desk.send"))
    desk.die(task_message("d"), exception="http.TimeoutError")
    chosen, expected = FILTERS[name]
    done = redrive(desk.transport, LETTERS, chosen)
    assert "".join(desk.ids()) == expected
    assert "".join(desk.ids(LETTERS)) == "".join(each for each in "abcd" if each not in expected)
    assert done.looked_at == 4


def test_letters_are_chosen_by_the_time_of_their_death(desk: Desk) -> None:
    """Older and newer than, to the millisecond, exclusive."""
    desk.die(task_message("old"), ago_ms=60_000)
    died = desk.messages(LETTERS)[0]["headers"]["redelivery"]["deaths"][0]["last"]
    for before, after, expected in (
        (died, None, 0),
        (died + 1, None, 1),
        (None, died, 0),
        (None, died - 1, 1),
        (died + 1, died - 1, 1),
    ):
        chosen = Filter(died_before_ms=before, died_after_ms=after)
        assert redrive(desk.transport, LETTERS, chosen, WalkOptions(dry_run=True)).moved == expected


def test_letters_go_back_although_the_clock_was_set_back_after_their_death(desk: Desk) -> None:
    """Their deaths lie in the future, which is not after the beginning of the redrive."""
    died = desk.die(ago_ms=-3_600_000)
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    assert (done.looked_at, done.moved, desk.ids()) == (1, 1, [died])


def test_what_cannot_go_back_stays_and_is_counted(desk: Desk) -> None:
    """Bytes that were no message, a dead letter without origin, a foreign message: each with its reason; the others go."""
    lost = desk.die(task_message("no origin"))
    letter = desk.messages(LETTERS)[0]
    letter["headers"]["redelivery"]["origin"] = {}
    desk.client.lset(LETTERS, 0, sealed(letter).decode())
    desk.client.lpush(LETTERS, b"\x00garbage", sealed(task_message("foreign")))
    good = desk.die()
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    assert (done.moved, done.matched, sorted(done.left.values())) == (1, 4, [1, 1, 1])
    assert desk.ids() == [good]
    assert desk.client.llen(LETTERS) == 3
    oldest: Any = desk.client.lindex(LETTERS, -1)
    assert lost in oldest.decode()


def test_a_member_of_a_chord_runs_by_itself(desk: Desk) -> None:
    """The chord has counted its failure already: the callback is removed from the body, the arguments stay, and it is reported."""
    chord = {"task": "desk.send", "args": [], "kwargs": {}, "options": {"task_id": "callback"}}
    desk.die(task_message("member", body=body_of(7, chord=chord), group="g"))
    desk.die(task_message("only grouped", body=body_of(8), group="g"))
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    assert (done.moved, done.chords) == (2, 1)
    bodies = [json.loads(base64.b64decode(message["body"])) for message in desk.messages()]
    assert [(args, embed["chord"]) for args, _, embed in bodies] == [([7], None), ([8], None)]


def test_letters_that_die_while_it_runs_are_left_alone(desk: Desk) -> None:
    """Otherwise a task that fails at once would be redriven for ever."""
    copies(desk, 2 * BATCH)
    died_again = []

    def die_again(_: object) -> None:
        died_again.append(desk.die(task_message("again", "desk.again")))
        desk.client.lpop(desk.keys.list(QUEUE))

    done = redrive(desk.transport, LETTERS, EVERYTHING, WalkOptions(on_progress=die_again))
    assert done.moved == 2 * BATCH
    assert desk.ids(LETTERS) == died_again
    assert len(died_again) >= 2


def test_two_redrives_at_once_share_the_letters(desk: Desk) -> None:
    """Each letter goes back once."""
    ids = copies(desk, 4 * BATCH)
    results = []
    threads = [threading.Thread(target=lambda: results.append(redrive(desk.transport, LETTERS, EVERYTHING))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    redrive(desk.transport, LETTERS, EVERYTHING)
    assert sorted(desk.ids()) == ids
    assert desk.client.llen(LETTERS) == 0


@pytest.mark.parametrize("rate", [40.0, 3.0])
def test_a_rate_is_not_passed(desk: Desk, rate: float) -> None:
    """They go evenly: the n-th at least n/rate seconds after the first, except for one batch."""
    count = 6
    copies(desk, count)
    began = time.monotonic()
    redrive(desk.transport, LETTERS, EVERYTHING, WalkOptions(rate=rate))
    took = time.monotonic() - began
    batch = max(1, int(rate / 10))
    assert took >= (count - batch) / rate * 0.99
    assert desk.client.llen(QUEUE) == count


def test_it_works_on_a_full_server(desk: Desk) -> None:
    """A move frees memory before it needs any."""
    ids = copies(desk, 5)
    desk.client.config_set("maxmemory-policy", "noeviction")
    desk.client.config_set("maxmemory", 1)
    done = redrive(desk.transport, LETTERS, EVERYTHING)
    desk.client.config_set("maxmemory", 0)
    assert (done.moved, desk.ids()) == (5, ids)


def test_a_read_only_server_refuses_and_keeps_every_letter(desk: Desk) -> None:
    """One error says how many had moved."""
    ids = copies(desk, 5)
    desk.client.replicaof("127.0.0.1", 1)
    with pytest.raises(BrokerError, match=r"stopped when 0 dead letters had gone back.*run the same command again"):
        redrive(desk.transport, LETTERS, EVERYTHING)
    assert desk.ids(LETTERS) == ids
    assert desk.messages() == []


def test_with_a_key_prefix_everything_is_below_it(any_server: Server) -> None:
    """The `global_keyprefix` of kombu holds for every name."""
    desk = Desk(any_server, prefix="shop:")
    desk.die(task_message("a"))
    assert redrive(desk.transport, LETTERS, EVERYTHING).moved == 1
    assert opened(desk.client.lindex("shop:orders", 0))["headers"]["id"] == "a"  # type: ignore[arg-type]
    names: Any = desk.client.keys("*")
    assert all(name.startswith(b"shop:") for name in names)
    desk.transport.close()
