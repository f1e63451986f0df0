"""The metrics' server and malicious clients: they cannot block its threads or its time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.operations.metrics import server as metrics_server
from redelivery.workers.operations.metrics.server import MetricsServer
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LONG = 60.0


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    """A server whose page is one word."""
    server = MetricsServer("127.0.0.1", 0, lambda _: (b"page", "text/plain"))
    server.begin()
    yield server
    server.end()


class Counting(MetricsServer):
    """Says whenever a page is asked for."""

    asked = threading.Semaphore(0)

    def page(self, accept: str) -> tuple[bytes, str]:
        """As its own."""
        self.asked.release()
        return super().page(accept)


def connected(server: MetricsServer) -> socket.socket:
    """A client that has sent nothing yet."""
    host, port = server.server_address[:2]
    return socket.create_connection((str(host), int(port)), timeout=LONG)


def scraped(server: MetricsServer) -> str:
    """What a scrape gets."""
    with OPENER.open(server.url, timeout=LONG) as answer:
        found: str = answer.read().decode()
    return found


def serving() -> int:
    """Threads that serve a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_a_client_that_speaks_slowly_is_cut_off(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not extend its time."""
    monkeypatch.setattr(metrics_server, "TIMEOUT", 0.5)
    with connected(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        client.settimeout(0.05)
        ends_at = time.monotonic() + LONG
        while time.monotonic() < ends_at:
            try:
                client.sendall(b"X")
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it was served for a minute")
    assert scraped(server) == "page"


def test_a_client_that_reads_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read the page holds a thread no longer than a connection may last."""
    monkeypatch.setattr(metrics_server, "MAX_SECONDS", 0.5)
    server = MetricsServer("127.0.0.1", 0, lambda _: (b"x" * 50_000_000, "text/plain"))
    server.begin()
    before = serving()
    with contextlib.closing(connected(server)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert client.recv(4) == b"HTTP"
        until(lambda: serving() == before, LONG, what="its thread to end")
    server.end()


def test_many_silent_clients_take_no_more_threads_than_there_are_and_no_scrape_is_lost(server: MetricsServer) -> None:
    """The client that has been silent for longest is closed; a scrape in between is answered at once."""
    before = serving()
    with contextlib.ExitStack() as open_clients:
        for number in range(4 * metrics_server.LIMIT):
            open_clients.enter_context(connected(server))
            if number % metrics_server.LIMIT == 0:
                assert scraped(server) == "page"
        assert scraped(server) == "page"
        assert serving() - before <= 2 * metrics_server.LIMIT
        until(lambda: serving() - before <= metrics_server.LIMIT, LONG, what="those that were cut off to end")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_page_that_takes_long_is_waited_for_by_a_bounded_number(more: int) -> None:
    """At N-1, N and N+1 complete requests: one too many is refused, and the others are answered."""
    go_on, most = threading.Event(), 2 * metrics_server.LIMIT
    server = Counting("127.0.0.1", 0, lambda _: (str(go_on.wait(LONG)).encode(), "text/plain"))
    server.begin()
    with contextlib.ExitStack() as clients:
        asking = []
        for number in range(most + more):
            client = clients.enter_context(connected(server))
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            if number < most:
                asking.append(client)
                assert server.asked.acquire(timeout=LONG)
            else:  # before the others are answered, and free their places
                assert all_of(client) == b""
        go_on.set()
        assert [all_of(client).endswith(b"True") for client in asking] == [True] * min(most + more, most)
    server.end()


def all_of(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection; nothing if it refuses."""
    try:
        return client.makefile("rb").read()
    except ConnectionResetError:
        return b""
