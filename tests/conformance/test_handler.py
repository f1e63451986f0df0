"""Dead-letter handlers on every broker: each decision is carried out once, and recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.brokers import Place
    from tests.support.running import Shop

PARKED = "DLQ.DLQ.celery"
POLICIES = {"#": {"max_delivery_attempts": 1}, "DLQ.#": {"max_delivery_attempts": 3, "redelivery_delay": 0.1}}


@pytest.fixture(scope="module")
def handled(shared_place: Place) -> Iterator[tuple[Shop, dict[str, str]]]:
    """A worker that consumes a queue and its DLQ with a handler, and a dead letter for each decision."""
    archive = str(shared_place.folder / "archive")
    shop = shared_place.shop(module="tests.support.apps.letter_shop", settings={"dead_letter_archive": archive, "queues": POLICIES})
    shop.start("-Q", "celery,DLQ.celery")
    ids = {what: shop.send("picky", what) for what in ("redrive", "edit", "archive", "discard", "park", "fail", "astray")}
    yield shop, ids
    shop.stop()


def outcomes(shop: Shop, task_id: str) -> list[str]:
    """A task's outcomes, ordered by generation, because producers and workers have different clocks."""
    return [f"{event.generation} {event.outcome}" for event in sorted(shop.events_of(task_id), key=lambda each: each.generation)]


@pytest.mark.parametrize("what", ["redrive", "edit"])
def test_a_letter_that_is_sent_back_succeeds_in_its_next_life(handled: tuple[Shop, dict[str, str]], what: str) -> None:
    """A handler can send a dead letter back unchanged or with other arguments; its next life succeeds."""
    shop, ids = handled
    assert shop.ended(ids[what], "succeeded").generation == 1
    assert outcomes(shop, ids[what])[-2:] == ["1 redriven", "1 succeeded"]
    assert len(shop.runs(ids[what])) == 2


@pytest.mark.parametrize(("what", "outcome"), [("archive", "purged"), ("discard", "discarded")])
def test_a_letter_that_is_closed_is_gone(handled: tuple[Shop, dict[str, str]], what: str, outcome: str) -> None:
    """An archived or discarded dead letter is gone."""
    shop, ids = handled
    shop.ended(ids[what], outcome)
    until(lambda: ids[what] not in lying(shop, "DLQ.celery"), what="the letter to go")
    assert ids[what] not in lying(shop, PARKED)


@pytest.mark.parametrize("what", ["park", "fail", "astray"])
def test_a_letter_that_is_held_is_parked_once(handled: tuple[Shop, dict[str, str]], what: str) -> None:
    """At once if the handler says so, or after three failures: it raises, or asks for one of Celery's queues."""
    shop, ids = handled
    until(lambda: ids[what] in lying(shop, PARKED), what="the letter to be parked")
    calls: list[Any] = shop.runs(f"handler-{ids[what]}")
    assert [call["handled"] for call in calls] == ([0] if what == "park" else [0, 1, 2])
    assert lying(shop, PARKED).count(ids[what]) == 1
    assert "celery.pidbox" not in shop.leftovers()


def lying(shop: Shop, queue: str) -> list[str]:
    """The task ids of the dead letters in a queue."""
    return [each["headers"]["id"] for each in shop.letters(queue)]
