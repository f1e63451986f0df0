"""The metrics' server: `/metrics` over plain HTTP, for a Prometheus that scrapes it.

The page is made for each request, one at a time. If the broker does not answer, the server answers 503 and why, so that the scrape
fails and the alarm `up == 0` fires. It goes on, and asks the broker again at the next request. The number of connections, each
with a thread, is bounded, and so is the time of each. If all are taken, the server closes the one that has waited longest without
sending a request. Limits: there is no password and no TLS. Everybody who reaches the address may read the page, so by default it
is an address of the loopback interface.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from redelivery.errors import RedeliveryError
from redelivery.middleware.brokers.errors import BROKER_ERRORS
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/metrics"
#: Seconds that a client may take to send its request, and that a connection may last in all.
TIMEOUT, MAX_SECONDS = 10.0, 60.0
#: Connections at once, each with a thread.
LIMIT = 16
#: Seconds between two looks for connections whose time is over.
LOOK = 0.5
PLAIN = "text/plain; charset=utf-8"


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: MetricsServer
    timeout = TIMEOUT
    server_version, sys_version = "redelivery", ""

    def do_GET(self) -> None:
        """Answer with the page; for another path, with 404 and the page's path."""
        self.server.heard(self.connection)
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"The metrics are at {PATH}.\n", PLAIN)
            return
        try:
            page, content_type = self.server.page(self.headers.get("Accept", ""))
        except (RedeliveryError, *BROKER_ERRORS) as exc:
            log.warning("metrics.not_seen", error=str(exc))
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"The broker does not answer: {type(exc).__name__}.\n", PLAIN)
        except Exception:  # noqa: BLE001 - the next request may be answered
            log.exception("metrics.failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "An error in redelivery: see its log.\n", PLAIN)
        else:
            self._send(HTTPStatus.OK, page, content_type)

    do_HEAD = do_GET  # noqa: N815 - as above

    def _answer(self, status: HTTPStatus, text: str, content_type: str) -> None:
        self._send(status, text.encode("utf-8", "replace"), content_type)

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A scrape every few seconds is not logged."""


@dataclass(slots=True)
class _Open:
    """A connection: when it began, whether its request has come (`is_heard`), and whether it was cut off."""

    since: float
    is_heard: bool = False
    is_cut_off: bool = False

    def cut_off(self, request: Any) -> None:
        """Shut the connection down, so that the thread that reads or writes it returns at once."""
        self.is_cut_off = True
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class MetricsServer(ThreadingHTTPServer):
    """Serves the page that `make` makes for an Accept header, in threads, from `begin` to `end`.

    Raises `OSError` if it cannot listen.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, make: Callable[[str], tuple[bytes, str]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._make = make
        self._one_at_a_time = threading.Lock()
        self._lock = threading.Lock()
        self._open: dict[Any, _Open] = {}
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        host, port = self.server_address[:2]
        named = f"[{host!s}]" if self.address_family is socket.AF_INET6 else str(host)
        return f"http://{named}:{port}{PATH}"

    def page(self, accept: str) -> tuple[bytes, str]:
        """The present page, in a format that the client accepts, and its content type. Raises what the broker's driver raises."""
        with self._one_at_a_time:
            return self._make(accept)

    # the life of a connection; the server's own thread calls the first three methods

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to serve a connection, if there is room for one more."""
        with self._lock:
            if len(self._open) >= LIMIT:
                self._make_room()
            is_room = len(self._open) < 2 * LIMIT  # connections that were cut off end in a moment
            if is_room:
                self._open[request] = _Open(time.monotonic())
        if is_room:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off the connections that are open for too long."""
        now = time.monotonic()
        with self._lock:
            for request, state in self._open.items():
                if now - state.since > (MAX_SECONDS if state.is_heard else TIMEOUT):
                    state.cut_off(request)

    def _make_room(self) -> None:
        """Cut off the oldest connection that has not sent its request."""
        for request, state in self._open.items():
            if not (state.is_heard or state.is_cut_off):
                state.cut_off(request)
                return

    def heard(self, request: Any) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            self._open[request].is_heard = True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and forget it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def begin(self) -> None:
        """Begin to answer, in a thread."""
        threading.Thread(target=self.serve_forever, args=(LOOK,), name="redelivery-metrics", daemon=True).start()

    def end(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """A client that went away in the middle is not logged."""
