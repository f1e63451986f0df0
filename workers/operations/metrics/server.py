"""The server of the metrics: `/metrics` over plain HTTP, which Prometheus scrapes.

Each request measures the broker, one request at a time. If the broker does not answer, the server answers 503, so that the scrape
fails and the alarm `up == 0` fires. The number of connections, each with a thread, is bounded, and so is the time of each. If all
are in use, the server closes the oldest one that has sent no request. Limits: there is no password and no TLS. Every client that
reaches the address can read the page, so the default address is on the loopback interface.
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

from redelivery.middleware.brokers.errors import EXPECTED_ERRORS
from redelivery.middleware.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/metrics"
#: The maximum seconds until a client has sent its request, and of a connection.
TIMEOUT, MAX_SECONDS = 10.0, 60.0
#: The maximum number of connections, each with a thread.
LIMIT = 16
#: Seconds between two checks for connections whose time is over.
CHECK_EVERY = 0.5


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = TIMEOUT
    server_version, sys_version = "redelivery", ""

    def do_GET(self) -> None:
        """Answer with the page; for another path with 404."""
        self.server.note_request(self.connection)
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, f"The metrics are at {PATH}.\n")
            return
        try:
            page, content_type = self.server.page(self.headers.get("Accept", ""))
        except EXPECTED_ERRORS as exc:
            log.warning("metrics.not_seen", error=str(exc))
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"The broker does not answer: {type(exc).__name__}.\n")
        except Exception:  # noqa: BLE001 - the next request may be answered
            log.exception("metrics.failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "An error in redelivery: see its log.\n")
        else:
            self._send(HTTPStatus.OK, page, content_type)

    do_HEAD = do_GET  # noqa: N815 - the name of the base class

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode("utf-8", "replace"), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: there is a scrape every few seconds."""


@dataclass(slots=True)
class _Open:
    """A connection: when it began, whether it has sent its request (`has_request`), and whether it was cut off."""

    since: float
    has_request: bool = False
    is_cut_off: bool = False

    def cut_off(self, request: Any) -> None:
        """Shut the connection down, so that its thread returns at once."""
        self.is_cut_off = True
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class MetricsServer(ThreadingHTTPServer):
    """Serves the page that `make` returns for an Accept header, from `begin` to `end`. Raises `OSError` if it cannot listen."""

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
        """Return the page in a format that the client accepts, and its content type. Raises the errors of the broker's driver."""
        with self._one_at_a_time:
            return self._make(accept)

    # The server's own thread calls the next three methods.

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to serve a connection, or close it if there are too many."""
        with self._lock:
            if len(self._open) >= LIMIT:
                self._cut_off_oldest()
            is_served = len(self._open) < 2 * LIMIT  # connections that were cut off end in a moment
            if is_served:
                self._open[request] = _Open(time.monotonic())
        if is_served:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off the connections that have been open for too long."""
        now = time.monotonic()
        with self._lock:
            for request, state in self._open.items():
                if now - state.since > (MAX_SECONDS if state.has_request else TIMEOUT):
                    state.cut_off(request)

    def _cut_off_oldest(self) -> None:
        """Cut off the oldest connection that has not sent its request."""
        for request, state in self._open.items():
            if not (state.has_request or state.is_cut_off):
                state.cut_off(request)
                return

    def note_request(self, request: Any) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            self._open[request].has_request = True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def begin(self) -> None:
        """Begin to answer, in a thread."""
        threading.Thread(target=self.serve_forever, args=(CHECK_EVERY,), name="redelivery-metrics", daemon=True).start()

    def end(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Log nothing: the client has closed the connection."""
