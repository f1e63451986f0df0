"""A rolling upgrade: workers of this version and of a future one share a queue, and deliver each other's messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.envelope import HEADER, Envelope
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.letters.redrive.redrive import redrive
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

#: What the future version (`tests/support/apps/newer.py`) writes.
VERSION = 2
ATTEMPTS = 6
SETTINGS = {"queues": {"#": {"redelivery_delay": 0.05, "redelivery_delay_multiplier": 1, "max_delivery_attempts": ATTEMPTS}}}
OURS, NEWER = "w0@shop", "w1@shop"


def letters_of(here: Shop) -> dict[str, dict[str, Any]]:
    """Our headers of all dead letters, by task."""
    return {letter["headers"]["id"]: letter["headers"][HEADER] for letter in here.letters()}


def wrote(header: dict[str, Any]) -> set[str]:
    """Which workers ended a delivery of this message."""
    return {each["worker"] for each in header["attempts"]}


def is_whole(here: Shop, task_id: str, header: dict[str, Any], generation: int) -> None:
    """The message has its full number of attempts, each once, from either worker; the newer version's field is there."""
    envelope = Envelope.of({HEADER: header})
    assert (envelope.attempt, envelope.generation, len(here.runs(task_id))) == (ATTEMPTS, generation, ATTEMPTS * (generation + 1))
    assert [(each["reason"], each["count"]) for each in envelope.deaths] == [("exhausted", generation + 1)]
    times = [each["at"] for each in envelope.attempts]
    assert times == sorted(times)
    if NEWER in wrote(header):
        by_it = sum(each["worker"] == NEWER for each in envelope.attempts)
        assert header["version"] == VERSION
        assert header["lane"]["writes"] >= by_it
    elif not generation:
        assert header["version"] == 1


def all_died(here: Shop, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Wait until all of these are dead letters; returns our headers of them."""
    until(lambda: letters_of(here).keys() >= set(ids), what="all to die")
    return letters_of(here)


def test_workers_of_two_header_versions_hand_messages_to_each_other(shop: Callable[..., Shop]) -> None:
    """Failing tasks are redelivered by both, die once, are redriven, and die again: no count and no field is lost."""
    here = shop(settings=SETTINGS, module="tests.support.apps.deaths")
    here.start(pool="threads", concurrency=1)
    newer = replace(here, module="tests.support.apps.newer", workers=[*here.workers])
    here.workers.append(newer.start(pool="threads", concurrency=1))
    ids: list[str] = []
    for _ in range(20):
        ids += [here.send("fails") for _ in range(10)]
        found = all_died(here, ids)
        if any(wrote(header) == {OURS, NEWER} for header in found.values()):
            break
    found = all_died(here, ids)
    assert any(wrote(header) == {OURS, NEWER} for header in found.values()), "no message has met both"
    for task_id, header in found.items():
        is_whole(here, task_id, header, 0)
    assert redrive(here.app.redelivery.transport, "DLQ.celery", Filter()).moved == len(ids)
    for task_id, header in all_died(here, ids).items():
        is_whole(here, task_id, header, 1)
        assert header["first_death"] == found[task_id]["first_death"]
        died = ["published", *["redelivery_scheduled"] * (ATTEMPTS - 1), "dead_lettered"]
        assert here.outcomes_of(task_id) == [*died, "redriven", *died[1:]]
    until(lambda: here.leftovers() == {}, what="nothing to be held")
    assert [worker.stop() for worker in here.workers] == [0, 0]
