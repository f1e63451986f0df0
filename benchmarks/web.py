"""The operator's page over very many dead letters: the speed of each screen, and its load on the broker while a worker runs.

1. The page gets HTTP requests, one after the other. For screens that search, and so send their head first, the time until the end
   is measured, too.
2. A worker runs tasks that are published at a steady rate: without a page, with 200 open pages of live figures, with a user who
   opens a screen each second, and during a dry run of all dead letters. The broker's processor time and the lateness of tasks are
   measured.
3. Eight users request one screen again and again, without a pause: the highest load of that screen.
4. All at once: users who search, users who open screens, a dry run, and 200 open pages.

On RabbitMQ the load is measured in the same way, with far fewer dead letters: the page reads them only when a user asks for it.

Three expensive screens are measured separately: Task, which searches the newest 20,000 messages of each list and as many events; a
dry run of all dead letters; and Books, in which every life is wrong, and which does not use the broker.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.celery_side import QUEUE
from benchmarks.figures import less, percentile
from benchmarks.sides import side
from benchmarks.stamps import late_ms
from benchmarks.stock import Stock
from benchmarks.wrong_books import write_books
from redelivery.workers.letters import Letter
from redelivery.workers.web.shared.previews import FRESH
from redelivery.workers.web.shared.survey import UNREAD
from tests.support.page.web_page import WebPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.figures import Figure
    from benchmarks.side import Side
    from tests.support.page.web_page import Visitor

__all__ = ["page", "page_on_rabbitmq"]

LETTERS = f"DLQ.{QUEUE}"
#: Requests of each screen; tasks in a second; open pages; seconds of each load.
LOOKS, PER_SECOND, PAGES, SPAN = 40, 250, 200, 15.0
HOUR = 3600.0
#: Requests of an expensive screen; users who request a screen without a pause.
HEAVY, PEOPLE = 10, 8
#: The ordinary screens. The causes come last, because they are counted for a minute after a request.
NEWEST = f"/letters?queue={LETTERS}"
SCREENS = {
    "overview": "/",
    "letters": NEWEST,
    "delayed": "/delayed",
    "queues": "/queues",
    "workers": "/workers",
    "operations": "/operations",
    "causes": "/causes",
}
#: Searches without a match, which read as much as they may.
NOWHERE = f"/task?id={'0' * 12}"
SEARCHES = {
    "letters_none_chosen": f"{NEWEST}&exception=Nothing",
    "letter_nowhere": f"/letter?queue={LETTERS}&id={'0' * 12}",
    "task": NOWHERE,
}
#: The seconds between two looks into a dead-letter queue of RabbitMQ. The page shows a result at least that long.
LOOKS_APART = 10.0
#: A dry run of all dead letters; the seconds between two checks of its end; its timeout in seconds.
DRY_RUN, LOOK, TIMEOUT = f"/operations/preview?kind=redrive&queue={LETTERS}", 0.25, 1800.0


def page(name: str, *, letters: int, delayed: int) -> dict[str, Figure]:
    """Measure the screens and the load, with dead letters and delayed messages. Raises `RuntimeError` if a screen fails."""
    with side(name) as here:
        stock = Stock(here.client)
        stock.kill(letters, QUEUE, LETTERS)
        stock.delay(delayed, "stock", HOUR)  # in another queue, so that the worker's queue becomes empty
        with here.worker():
            found = _loaded(here, "without_page")
        with WebPage("benchmarks.app", here.folder, env=dict(os.environ)) as served:
            operator = served.operator()
            found |= _looks(operator, "causes_first", "/causes", 1, is_first=True, searches=True) | _screens(operator, letters)
            time.sleep(UNREAD)  # until the count of the causes has stopped
            with here.worker():
                found |= _looks(operator, "workers", "/workers")
                found |= _price(here, served, operator)
                found |= _most(here, operator, {**SEARCHES, **SCREENS})
            found |= _task(here, operator)
        books = write_books(here.folder / "books", letters)
        words = ("--allow", "redrive", "--books", str(books))
        with WebPage("benchmarks.app", here.folder, *words, env=dict(os.environ)) as served:
            operator = served.operator()
            found |= _looks(operator, "books", "/books", HEAVY, searches=True)
            found |= _dry_run(here, operator)
            time.sleep(FRESH)  # until the count is out of date, so that the next request counts again
            with here.worker(), _doing(lambda: _get(operator, DRY_RUN), pause=1.0):
                found |= _loaded(here, "dry_run")
                return found | _together(here, served, operator)


def page_on_rabbitmq(name: str, *, letters: int, delayed: int, broker: str) -> dict[str, Figure]:
    """Measure the load on RabbitMQ, with dead letters and delayed messages. Raises `RuntimeError` if a screen fails."""
    settings = {"queues": {"#": {"max_delivery_attempts": 1}}}
    with side(name, settings, broker=broker) as here, here.worker():
        fail = here.sender("failing")
        for _ in range(letters):
            fail()
        here.wait_until_empty()
        for _ in range(delayed):
            here.send_later("noop", HOUR)
        found = _loaded(here, "without_page")
        with WebPage("benchmarks.app", here.folder, "--allow", "look", env=dict(os.environ)) as served:
            operator = served.operator()
            for screen, path in SCREENS.items():
                found |= _looks(operator, screen, path)
            found |= _price(here, served, operator)
            [look] = operator.get(f"/letters?queue={LETTERS}").forms("/look")
            with _doing(lambda: operator.post("/look", look), pause=LOOKS_APART):
                found |= _loaded(here, "looks")
            return found | _most(here, operator, SCREENS)


def _screens(operator: Visitor, letters: int) -> dict[str, Figure]:
    """The milliseconds until the first byte of each screen: median and longest."""
    href = _get(operator, NEWEST).text.partition('href="/letter?')[2].partition('"')[0].replace("&amp;", "&")
    screens = {name: path for name, path in SCREENS.items() if name != "workers"} | {
        "letters_in_the_middle": f"{NEWEST}&before={letters // 2}",
        "letters_by_cause": f"{NEWEST}&fingerprint=0123&task=benchmarks.*",
        "letter": f"/letter?{href}",
    }
    found: dict[str, Figure] = {}
    for name, path in screens.items():
        found |= _looks(operator, name, path)
    return found | _looks(operator, "letters_none_chosen", SEARCHES["letters_none_chosen"], HEAVY, searches=True)


def _looks(
    operator: Visitor, name: str, path: str, count: int = LOOKS, *, is_first: bool = False, searches: bool = False
) -> dict[str, Figure]:
    """The milliseconds until the first byte of a screen; for a screen that searches, also until its end."""
    if not is_first:
        _get(operator, path)  # the first request imports modules
    looks = [_get(operator, path) for _ in range(count)]
    took, whole = [each.first for each in looks], percentile([each.whole for each in looks], 0.5)
    found = {name: less(percentile(took, 0.5), "ms"), f"{name}_longest": less(max(took), "ms")}
    return found | ({f"{name}_whole": less(whole, "ms")} if searches else {})


def _task(here: Side, operator: Visitor) -> dict[str, Figure]:
    """The screen Task for a dead letter and for an unknown task: the times, and the broker's processor time of one request."""
    [letter] = [Letter.of(raw) for raw in here.client.lrange(LETTERS, 0, 0)]
    found: dict[str, Figure] = {}
    for name, task_id in (("task", letter.task_id), ("task_nowhere", "0" * 12)):
        used = here.broker_seconds()
        found |= _looks(operator, name, f"/task?id={task_id}", HEAVY, searches=True)
        found[f"{name}_broker"] = less((here.broker_seconds() - used) / (HEAVY + 1) * 1000, "ms")
    return found


def _dry_run(here: Side, operator: Visitor) -> dict[str, Figure]:
    """A dry run of all dead letters without other load: its first byte, its duration, and its load on the broker."""
    used, began = here.broker_seconds(), time.monotonic()
    look = _get(operator, DRY_RUN)
    first = look.first
    while "Nothing was changed." not in look.text:
        if time.monotonic() - began > TIMEOUT:
            msg = f"the dry run has not ended: {look.text[-500:]}"
            raise RuntimeError(msg)
        time.sleep(LOOK)  # another process counts
        look = _get(operator, DRY_RUN)
    seconds, used = time.monotonic() - began, here.broker_seconds() - used
    return {
        "dry_run": less(first, "ms"),
        "dry_run_seconds": less(seconds, "s"),
        "dry_run_broker_alone": less(used / seconds * 1000, "ms/s"),
    }


@dataclass(frozen=True, slots=True)
class Look:
    """An answer, and the milliseconds until its first byte and its end."""

    first: float
    whole: float
    text: str


def _get(operator: Visitor, path: str) -> Look:
    """Request a screen. Raises `RuntimeError` if its status is not 200."""
    connection = http.client.HTTPConnection(operator.host, operator.port, timeout=60)
    cookie = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    try:
        connection.connect()
        began = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        first = (time.perf_counter() - began) * 1000
        text = answer.read().decode()
        whole = (time.perf_counter() - began) * 1000
    finally:
        connection.close()
    if answer.status != http.client.OK:
        msg = f"{path}: {answer.status}: {text[-500:]}"
        raise RuntimeError(msg)
    return Look(first, whole, text)


def _price(here: Side, served: WebPage, operator: Visitor) -> dict[str, Figure]:
    """The load with many open pages, and with a user who browses."""
    with _open_pages(served, operator):
        found = _loaded(here, "open_pages")
    screens = itertools.cycle(SCREENS.values())
    with _doing(lambda: _get(operator, next(screens)), pause=1.0):
        return found | _loaded(here, "browsing")


@contextmanager
def _open_pages(served: WebPage, operator: Visitor) -> Iterator[None]:
    """Open `PAGES` pages with live figures."""
    with ExitStack() as stack:
        for _ in range(PAGES):
            stack.enter_context(_opened(served, operator))
        yield


def _most(here: Side, operator: Visitor, screens: Mapping[str, str]) -> dict[str, Figure]:
    """The load of each screen when users request it without a pause."""
    found: dict[str, Figure] = {}
    for name, path in screens.items():
        with _doing(functools.partial(operator.get, path), people=PEOPLE):
            loaded = _loaded(here, f"most_{name}")
        found |= {each: loaded[each] for each in (f"most_{name}_broker", f"most_{name}_start_p99")}
    return found


def _together(here: Side, served: WebPage, operator: Visitor) -> dict[str, Figure]:
    """The load of everything at once: open pages, a dry run, users who search, and users who open screens, without a pause."""
    screens, lock = itertools.cycle(SCREENS.values()), threading.Lock()

    def look_around() -> None:
        with lock:
            path = next(screens)
        operator.get(path)

    search = functools.partial(operator.get, NOWHERE)
    with _open_pages(served, operator), _doing(search, people=PEOPLE), _doing(look_around, people=PEOPLE):
        return _loaded(here, "together")


@contextmanager
def _doing(act: Callable[[], object], *, people: int = 1, pause: float = 0.0) -> Iterator[None]:
    """Let users repeat an action, with a pause (seconds) between. Raises the error of the action."""
    enough = threading.Event()

    def go_on() -> None:
        while not enough.wait(pause):
            act()

    with ThreadPoolExecutor(people) as threads:
        doing = [threads.submit(go_on) for _ in range(people)]
        try:
            yield
        finally:
            enough.set()
    for each in doing:
        each.result()


def _opened(served: WebPage, operator: Visitor) -> socket.socket:
    """Open a page with live figures, and wait for the first figures."""
    cookie = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    stream = socket.create_connection((operator.host, served.port), timeout=30)
    stream.sendall(f"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode())
    heard = b""
    while b"data: " not in heard:
        heard += stream.recv(65_536)
    return stream


def _loaded(here: Side, name: str) -> dict[str, Figure]:
    """Publish tasks at a steady rate: the broker's processor time, and the lateness of tasks."""
    stamp, path, count = here.sender("stamp"), here.folder / name, 0
    began, used, due = time.monotonic(), here.broker_seconds(), time.time()
    while time.monotonic() - began < SPAN:
        due += 1 / PER_SECOND
        time.sleep(max(due - time.time(), 0))
        stamp(time.time(), str(path))
        count += 1
    seconds, used = time.monotonic() - began, here.broker_seconds() - used
    here.wait_until_empty()
    late = late_ms(path, expected=count)
    return {
        f"{name}_broker": less(used / seconds * 1000, "ms/s"),
        f"{name}_start_p50": less(percentile(late, 0.5), "ms"),
        f"{name}_start_p99": less(percentile(late, 0.99), "ms"),
    }
