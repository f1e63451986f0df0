"""A slow broker and a full one: the page says so in bounded time. A change that it could not make is not made later."""

from __future__ import annotations

import functools
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import MaxConnectionsError

from redelivery.workers.brokers.broker import broker_of
from redelivery.workers.brokers.broker_words import broker_message
from redelivery.workers.operations.runs.audit import entries
from redelivery.workers.operations.runs.operation import listed
from tests.conformance.brokers import Place, letter
from tests.faults.chaos.processes.proxy import Proxy
from tests.support.desk import LETTERS, QUEUE, task_message
from tests.support.page.web_page import WebPage
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.desk import Desk
    from tests.support.page.web_page import Visitor
    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

#: The screens with figures that are requested at the same time.
FIGURES = ("/", "/queues")
SHOP = "tests.support.page.web_shop"
SCREENS = ("/", "/causes", "/letters", "/delayed", "/queues", "/workers", "/operations", "/task?id=task-1")


def test_a_broker_that_does_not_answer_is_said_and_what_was_asked_of_it_is_not_done_later(
    open_page: Callable[..., WebPage], desk: Desk, server: Server
) -> None:
    """An action that could not look at the broker is given up, even if the broker answers again."""
    task_id, delayed_id = desk.die(), desk.delay(task_message())
    page = open_page("--allow", "all")
    operator = page.operator()
    [redrive] = operator.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")[:1]
    [cancel] = operator.get("/delayed").forms("/delayed/cancel")
    [purge] = operator.get(f"/operations/preview?kind=purge&queue={LETTERS}").forms("/operations/begin")
    assert server.process is not None
    acts = {"/letter/redrive": redrive, "/delayed/cancel": cancel, "/operations/begin": purge}
    with ThreadPoolExecutor(len(SCREENS)) as visitors:
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            answers = list(visitors.map(lambda path: operator.post(path, acts[path]), acts))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        for answer in answers:
            assert (answer.status, "does not answer in time" in answer.read) == (503, True), answer.read
        until(lambda: operator.get("/").status == 200, 30, "the page to reach the broker again")
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            answers = list(visitors.map(operator.get, SCREENS))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        for answer in answers:
            assert (answer.status, "The broker does not answer" in answer.read) == (503, True), answer.read
    until(lambda: operator.get("/").status == 200, 30, "the page to reach the broker again")
    assert (desk.ids(LETTERS), desk.ids(), operator.get("/delayed").forms("/delayed/cancel")) == ([task_id], [], [cancel])
    assert delayed_id == cancel["id"]
    assert "There are no operations yet" in operator.get("/operations").read
    assert page.process.poll() is None


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy to the broker that can be made slow."""
    made = Proxy(server.socket).start()
    yield made
    made.stop()


@pytest.fixture
def page_behind(proxy: Proxy, tmp_path: Path) -> Iterator[WebPage]:
    """A page that reaches the broker through the proxy."""
    with WebPage(SHOP, tmp_path, "--allow", "all", "--as", "ada", env={**os.environ, "WEB_SHOP_BROKER": proxy.url}) as page:
        yield page


@pytest.fixture
def behind(page_behind: WebPage) -> Visitor:
    """An operator of that page."""
    return page_behind.operator()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xdist_group("web_broker")
def test_a_slow_broker_has_slow_screens_and_old_figures_say_so(behind: Visitor, desk: Desk, proxy: Proxy) -> None:
    """Answers take 300 ms: each screen comes, and the change of a form is made."""
    task_id = desk.die()
    desk.delay(task_message())
    [redrive, *_] = behind.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")
    proxy.answer_late(0.3)
    with ThreadPoolExecutor(4) as visitors:
        answers = dict(zip(SCREENS, visitors.map(behind.get, SCREENS), strict=True))
    for path, answer in answers.items():
        is_early = path in FIGURES and "its figures are not there yet" in answer.read
        assert answer.status == (503 if is_early else 200), (path, answer.read)

    def is_old(path: str) -> bool:
        return "The broker answers slowly: these figures are" in behind.get(path).read

    for path in FIGURES:
        until(functools.partial(is_old, path), 60, f"old figures on {path}")
    assert behind.post("/letter/redrive", redrive).status == 303
    assert (desk.ids(), [(each.actor, each.act) for each in entries(desk.transport, 10)]) == ([task_id], [("ada", "redrive")])


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xdist_group("web_broker")
def test_the_head_of_a_screen_that_searches_comes_before_the_rest(behind: Visitor, desk: Desk, proxy: Proxy) -> None:
    """Head and rest together are the screen. An error in the rest is shown below the head."""
    task_id = desk.die()
    behind.get("/")
    searching = {
        "Causes": "/causes",
        "Dead letters": f"/letters?queue={LETTERS}",
        "Dead letter": f"/letter?queue={LETTERS}&id={task_id[:-1]}x",
        "Task": f"/task?id={task_id}",
        "Dry run": f"/operations/preview?kind=purge&queue={LETTERS}",
    }
    proxy.answer_late(0.3)
    for title, path in searching.items():
        status, head, rest = behind.parts(path)
        assert (status, f"<title>{title} · " in head, head.endswith("</p>\n")) == (200, True, True), (path, head)
        assert "<nav" in head, head
        assert (rest.count("<main"), rest.count("</html>")) == (1, 1), (path, rest)
    status, _, rest = behind.parts(searching["Task"], after_head=desk.server.kill)
    assert (status, "The broker does not answer" in rest) == (200, True), rest
    desk.server.start()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xdist_group("web_broker")
def test_a_very_slow_broker_holds_up_no_other_screen_and_a_late_form_says_what_became_of_it(
    behind: Visitor, page_behind: WebPage, desk: Desk, proxy: Proxy
) -> None:
    """Answers take 3 s, and there are more requests than threads. A change that has begun is made, or reported as failed."""
    desk.client.set(desk.keys.operator, "another")  # operations that begin must wait
    task_id = desk.die()
    desk.delay(task_message())
    [redrive, *_] = behind.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")
    [cancel] = behind.get("/delayed").forms("/delayed/cancel")
    [purge] = behind.get(f"/operations/preview?kind=purge&queue={LETTERS}").forms("/operations/begin")
    delayed = broker_of(desk.transport).delayed
    acts: dict[str, tuple[dict[str, str], Callable[[], bool]]] = {
        "/letter/redrive": (redrive, lambda: desk.ids() == [task_id]),
        "/delayed/cancel": (cancel, lambda: not delayed.totals()),
        "/operations/begin": (purge, lambda: len(listed(desk.install)) == 1),
    }

    def is_over(path: str, is_done: Callable[[], bool]) -> bool:
        """Whether the change was made, or logged as failed, for example because all connections of the page were waiting."""
        return is_done() or f"event=web.late_failed path={path} user=ada" in page_behind.log

    proxy.answer_late(3)
    with ThreadPoolExecutor(len(acts) + len(SCREENS)) as visitors:
        asked = {path: visitors.submit(behind.post, path, form) for path, (form, _) in acts.items()}
        screens = [visitors.submit(behind.get, path) for path in SCREENS]
        for path in ("/task", "/books", "/static/page.css"):
            assert behind.get(path).status == 200, path
        for answer in (each.result() for each in screens):
            assert answer.status in {200, 503}, answer.read
            late = ("does not answer in time", "answers slowly", "The page is busy")
            assert answer.status == 200 or any(each in answer.read for each in late), answer.read
        said = {path: each.result() for path, each in asked.items()}
    proxy.answer_late(0)
    until(lambda: behind.get("/").status == 200, 60, "the page to reach the broker again")
    for path, (_, is_done) in acts.items():
        if "Nothing was changed" in said[path].read:
            assert not is_done(), path
        else:
            assert said[path].status == 303 or "all the same" in said[path].read, said[path].read
            until(functools.partial(is_over, path, is_done), 30, f"{path}: {said[path].read[-1500:]} {page_behind.log}")


@pytest.mark.slow
@pytest.mark.xdist_group("web_broker")
def test_many_searches_hold_up_no_other_screen_and_what_nobody_waits_for_is_not_searched(
    behind: Visitor, desk: Desk, proxy: Proxy
) -> None:
    """Answers take 50 ms. Ten visitors open the screen Task, and eight leave when they see its head."""
    task_id = desk.die()
    behind.get(f"/task?id={task_id}")

    def searched() -> int:
        calls = desk.client.info("commandstats")
        return int(calls["cmdstat_xlen"]["calls"])

    before = searched()
    proxy.answer_late(0.05)
    leaving = [_left(behind, f"/task?id={task_id}") for _ in range(8)]
    with ThreadPoolExecutor(2) as visitors:
        staying = [visitors.submit(behind.get, f"/task?id={task_id}") for _ in range(2)]
        for each in leaving:
            each.close()
        for path in ("/queues", "/delayed", "/operations"):
            assert behind.get(path).status == 200, path
        answers = [each.result() for each in staying]
    proxy.answer_late(0)
    found = [f"Lies in {LETTERS}" in each.read for each in answers]
    assert any(found)
    for is_found, answer in zip(found, answers, strict=True):
        assert is_found or "other searches are under way" in answer.read or "does not answer in time" in answer.read, answer.read
    assert searched() - before <= 2 + 2, "those that left began a search"


def _left(visitor: Visitor, path: str) -> socket.socket:
    """A request whose client leaves after the head."""
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    asking = socket.create_connection((visitor.host, visitor.port), timeout=60)
    asking.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode())
    assert asking.recv(65_536).startswith(b"HTTP/1.1 200")
    return asking


def test_a_pool_without_a_free_connection_is_not_called_a_broker_that_is_gone(desk: Desk) -> None:
    """All of the page's connections wait for a slow broker."""
    pool = desk.client.connection_pool
    pool.max_connections = 1
    kept = pool.get_connection()
    with pytest.raises(MaxConnectionsError) as raised:
        desk.client.ping()
    pool.release(kept)
    assert str(broker_message(raised.value)).startswith("the broker answers slowly")


def test_a_full_redis_is_shown_and_its_letters_go_back(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """A move frees memory before it needs memory. So the page can show a full broker and redrive its dead letters."""
    task_id, operator = desk.die(), open_page("--allow", "all").operator()
    desk.client.config_set("maxmemory-policy", "noeviction")
    desk.client.config_set("maxmemory", 1)
    for path in (*SCREENS[:-1], f"/letter?queue={LETTERS}&id={task_id}"):
        assert operator.get(path).status == 200, path
    assert "The broker is full" in operator.get("/").read
    [form, *_] = operator.get(f"/letter?queue={LETTERS}&id={task_id}").forms("/letter/redrive")
    assert operator.post("/letter/redrive", form).status == 303
    assert desk.ids() == [task_id]


@contextmanager
def looked_at(rabbit: Rabbit, folder: Path, kind: str) -> Iterator[tuple[WebPage, Visitor, dict[str, str], dict[str, str]]]:
    """A page that has looked at the one dead letter of this broker, its operator, and the forms to look again and to redrive."""
    Place(kind, rabbit, folder).put(letter(task_message("task-of-rabbit-1")))
    with rabbit.connection() as connection:
        connection.default_channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    with WebPage(SHOP, folder, "--allow", "look,redrive", env={**os.environ, "WEB_SHOP_BROKER": rabbit.url}) as page:
        operator = page.operator()
        [look] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
        [href] = operator.follow(operator.post("/look", look)).links("/letter?")
        [redrive, *_] = operator.get(href).forms("/letter/redrive")
        yield page, operator, look, redrive


@pytest.mark.full
def test_a_rabbitmq_that_is_gone_is_said_and_the_page_stays(private_rabbit: Rabbit, tmp_path: Path) -> None:
    """Each screen answers, and an action changes nothing. When the node is back, everything works."""
    with looked_at(private_rabbit, tmp_path, "rabbit-classic") as (page, operator, look, redrive):
        private_rabbit.node.kill()
        for path in SCREENS[:-1]:
            answer = operator.get(path)
            assert (answer.status, "The broker does not answer" in answer.read) == (503, True), (path, answer.read)
        for act, given in (("/letter/redrive", redrive), ("/look", look)):
            answer = operator.post(act, given)
            assert answer.status == 503, (act, answer.read)
        private_rabbit.node.start()
        until(lambda: operator.get("/queues").status == 200, 60, "the page to reach the node again")
        assert page.process.poll() is None
    assert (private_rabbit.depth(LETTERS), private_rabbit.depth(QUEUE)) == (1, 0)


@pytest.mark.full
def test_a_full_rabbitmq_takes_no_letter_back_and_keeps_it(private_rabbit: Rabbit, tmp_path: Path) -> None:
    """The alarm blocks publishers. The page says that the broker does not answer, and the dead letter stays, once."""
    with looked_at(private_rabbit, tmp_path, "rabbit-quorum") as (_, operator, _, form):
        private_rabbit.node.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
        try:
            answer = operator.post("/letter/redrive", form)
            assert (answer.status, "The broker does not answer" in answer.read) == (503, True), answer.read
            assert operator.get(f"/letters?queue={LETTERS}").status == 200
            assert "The broker is full, and takes no publications" in operator.get("/").read
            assert private_rabbit.depth(QUEUE) == 0
        finally:
            private_rabbit.node.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
    until(
        lambda: (private_rabbit.depth(LETTERS) or 0) + (private_rabbit.depth(QUEUE) or 0) == 1, 30, "the letter to be in one place"
    )
