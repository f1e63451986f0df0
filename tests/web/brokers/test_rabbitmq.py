"""The page on RabbitMQ: what it can show. It marks messages as delivered only if a user tells it to look."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from redelivery.middleware.brokers.rabbitmq.delays import waiting
from redelivery.middleware.brokers.rabbitmq.messages import message_of
from redelivery.middleware.brokers.rabbitmq.names import AmqpNames
from redelivery.middleware.brokers.rabbitmq.peek import Look
from redelivery.middleware.brokers.rabbitmq.topology import declare_delays
from redelivery.middleware.messages.steps import sealed
from redelivery.workers.operations.runs.audit import os_user
from redelivery.workers.web.guard import FormCookie, form_token_of
from tests.conformance.brokers import Place, letter
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.desk import LETTERS, QUEUE, task_message
from tests.support.page.web_page import WebPage
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.rabbit import Rabbit


@pytest.fixture
def opened(rabbit: Rabbit, tmp_path: Path) -> Iterator[Callable[..., WebPage]]:
    """Start the page of this broker with these arguments; `url` is another address of the broker."""
    pages: list[WebPage] = []

    def start(*words: str, url: str = "") -> WebPage:
        env = {**os.environ, "WEB_SHOP_BROKER": url or rabbit.url}
        pages.append(WebPage("tests.support.page.web_shop", tmp_path, *words, env=env))
        return pages[-1]

    yield start
    for each in pages:
        each.__exit__()


def taken(rabbit: Rabbit) -> int:
    """How often the dead letter was delivered before."""
    with rabbit.connection() as connection, Look(connection, LETTERS) as look:
        [found] = list(look)
    return found.taken


def test_no_screen_marks_a_letter(rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage]) -> None:
    """Even after many requests. If a screen cannot show something, it names the command that can."""
    Place("rabbit-quorum", rabbit, tmp_path).put(letter(task_message()))
    operator = opened().operator()
    for _ in range(3):
        for path in ("/", "/causes", f"/letters?queue={LETTERS}", "/queues", "/workers", "/operations", "/delayed"):
            answer = operator.get(path)
            assert answer.status == 200, (path, answer.read)
    assert operator.get("/task?id=abcdef").status == 400
    assert "redelivery dlq causes" in operator.get("/causes").read
    token = form_token_of(operator.cookies[FormCookie.name], os_user())
    refused = operator.post("/look", {"queue": LETTERS, "token": token})
    assert (refused.status, "may not look" in refused.read) == (403, True), refused.read
    assert taken(rabbit) == 0


def test_letters_are_seen_when_it_is_told_to_look_and_one_goes_back(
    rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage]
) -> None:
    """The page keeps the result: later screens do not look again."""
    place = Place("rabbit-quorum", rabbit, tmp_path)
    place.put(letter(task_message("task-of-rabbit-1")))
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    operator = opened("--allow", "look,redrive", "--as", "ada").operator()
    [form] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
    shown = operator.follow(operator.post("/look", form))
    assert "1 shown" in shown.read
    operator.post("/look", form)  # at once again: the page shows the earlier result, and takes nothing
    assert operator.get("/operations").read.count("ada look done DLQ.orders") == 1
    assert "1 dead letter" in operator.get("/causes").read
    [href] = shown.links("/letter?")
    answer = operator.get(href)
    assert "task-of-rabbit-1" in answer.read
    [form, *_] = answer.forms("/letter/redrive")
    done = operator.post("/letter/redrive", form)
    assert done.status == 303, done.read
    assert "redrive done DLQ.orders task-of-" in operator.get("/operations").read
    assert (rabbit.depth(LETTERS), rabbit.depth(QUEUE)) == (0, 1)


def test_a_user_without_the_right_learns_it_at_once_and_holds_no_letter(
    rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage]
) -> None:
    """The page names the queue that its broker user may not use. The dead letter stays, and others can redrive it."""
    Place("rabbit-quorum", rabbit, tmp_path).put(letter(task_message("task-of-rabbit-1")))
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    user = f"few-{rabbit.name}"
    rabbit.node.evaluate(
        f'ok = rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"few">>, <<"tests">>), '
        f'ok = rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"{rabbit.name}">>, '
        f'<<"^$">>, <<"^$">>, <<"^(DLQ[.].*|{QUEUE})$">>, <<"tests">>).'
    )
    operator = opened("--allow", "look,redrive", url=f"amqp://{user}:few@{rabbit.url.partition('@')[2]}").operator()
    [form] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
    [href] = operator.follow(operator.post("/look", form)).links("/letter?")
    [form, *_] = operator.get(href).forms("/letter/redrive")
    refused = operator.post("/letter/redrive", form)
    assert refused.status == 503
    assert "ACCESS_REFUSED - access to queue 'redelivery.outcomes'" in refused.read
    until(lambda: rabbit.depth(LETTERS) == 1, 5, "the letter to be in its queue again")
    operator = opened("--allow", "look,redrive").operator()
    operator.post("/look", operator.get(f"/letters?queue={LETTERS}").forms("/look")[0])
    [form, *_] = operator.get(href).forms("/letter/redrive")
    assert operator.post("/letter/redrive", form).status == 303
    assert (rabbit.depth(LETTERS), rabbit.depth(QUEUE)) == (0, 1)


@pytest.fixture
def proxy(rabbit: Rabbit) -> Iterator[Proxy]:
    """A proxy to the node that can be made slow."""
    made = Proxy(rabbit.node.port).start()
    yield made
    made.stop()


@pytest.mark.full
def test_a_slow_rabbitmq_has_old_figures_and_a_letter_goes_back_once(
    rabbit: Rabbit, tmp_path: Path, opened: Callable[..., WebPage], proxy: Proxy
) -> None:
    """Answers take 300 ms. The page says what takes too long, and the change is made once."""
    Place("rabbit-quorum", rabbit, tmp_path).put(letter(task_message("task-of-rabbit-1")))
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    operator = opened("--allow", "look,redrive", url=rabbit.url.replace(f":{rabbit.node.port}/", f":{proxy.port}/")).operator()
    [form] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
    [href] = operator.follow(operator.post("/look", form)).links("/letter?")
    [form, *_] = operator.get(href).forms("/letter/redrive")
    proxy.answer_late(0.3)
    until(lambda: "The broker answers slowly: these figures are" in operator.get("/").read, 60, "old figures")
    assert operator.get(f"/letters?queue={LETTERS}").status == 200
    done = operator.post("/letter/redrive", form)
    assert done.status == 303 or "all the same" in done.read, done.read
    until(lambda: (rabbit.depth(LETTERS), rabbit.depth(QUEUE)) == (0, 1), 60, "the letter to be in its queue")
    again = operator.post("/letter/redrive", form)
    assert again.status == 400, again.read


@pytest.mark.full
def test_of_very_many_delayed_messages_those_that_are_due_first_are_shown(rabbit: Rabbit, opened: Callable[..., WebPage]) -> None:
    """The page takes 500 at most, says so, and gives them back. So it opens in time for any number."""
    names = AmqpNames()
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        declare_delays(connection, names)
        channel = connection.connection.channel()
        for number in range(630):
            late = number % 21 == 20  # 30 wait in a higher level of the delay store than the others
            task_id, delay_ms = (f"late-{number:05}", 7_200_000) if late else (f"soon-{number:05}", 4_000_000)
            waits = waiting(names, QUEUE, sealed(task_message(task_id)), delay_ms)
            assert waits is not None
            channel.basic_publish(message_of(waits.message, target=waits.target), *waits.target)
        channel.close()
    levels = [names.level(bit) for bit in (11, 12)]
    until(lambda: [rabbit.depth(each) for each in levels] == [600, 30], 60, "all to wait")
    operator = opened().operator()

    def in_time() -> Any:
        answer = operator.get("/delayed")  # a busy machine may take longer than the page waits
        return None if answer.status == 503 else answer

    for _ in range(2):
        shown = until(in_time, 60, "the page")
        assert shown.status == 200, shown.read
        assert "630 messages wait" in shown.read
        assert "So it took 500 of them, which are due first." in shown.read
        assert ("soon-" in shown.text, "late-" in shown.text) == (True, False)
    assert [rabbit.depth(each) for each in levels] == [600, 30]
