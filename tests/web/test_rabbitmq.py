"""The page of a RabbitMQ broker: what it can show there, and that it marks nothing unless it is told to look."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from redelivery.middleware.brokers.rabbitmq.peek import Look
from tests.conformance.brokers import Place, letter
from tests.support.desk import LETTERS, QUEUE, task_message
from tests.support.page.web_page import WebPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit


@pytest.fixture
def opened(rabbit: Rabbit, tmp_path: Path) -> Iterator[Callable[..., WebPage]]:
    """Start the page of this broker, with these words of the command line."""
    pages: list[WebPage] = []

    def start(*words: str) -> WebPage:
        env = {**os.environ, "WEB_SHOP_BROKER": rabbit.url}
        pages.append(WebPage("tests.support.page.web_shop", tmp_path, *words, env=env))
        return pages[-1]

    yield start
    for each in pages:
        each.__exit__()


def taken(rabbit: Rabbit) -> int:
    """How often the letter was taken before."""
    with rabbit.connection() as connection, Look(connection, LETTERS) as look:
        [found] = list(look)
    return found.taken


def test_no_screen_marks_a_letter(rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage]) -> None:
    """Not in many openings of each; what cannot be shown is said, with the command that shows it."""
    Place("rabbit-quorum", rabbit, tmp_path).put(letter(task_message()))
    operator = opened().operator()
    for _ in range(3):
        for path in ("/", "/causes", f"/letters?queue={LETTERS}", "/queues", "/workers", "/operations", "/delayed"):
            answer = operator.get(path)
            assert answer.status == 200, (path, answer.read)
    assert operator.get("/task?id=abcdef").status == 400
    assert "redelivery dlq causes" in operator.get("/causes").read
    assert operator.post("/look", {"queue": LETTERS}).status == 403
    assert taken(rabbit) == 0


def test_letters_are_seen_when_it_is_told_to_look_and_one_goes_back(
    rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage]
) -> None:
    """The look is kept: what is opened afterwards looks no more."""
    place = Place("rabbit-quorum", rabbit, tmp_path)
    place.put(letter(task_message("task-of-rabbit-1")))
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    operator = opened("--allow", "look,redrive").operator()
    [form] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
    shown = operator.follow(operator.post("/look", form))
    assert "1 shown" in shown.read
    assert "1 dead letter" in operator.get("/causes").read
    [href] = shown.links("/letter?")
    answer = operator.get(href)
    assert "task-of-rabbit-1" in answer.read
    [form, *_] = answer.forms("/letter/redrive")
    done = operator.post("/letter/redrive", form)
    assert done.status == 303, done.read
    assert (rabbit.depth(LETTERS), rabbit.depth(QUEUE)) == (0, 1)
