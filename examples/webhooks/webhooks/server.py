"""The receiver: an HTTP server on the loopback that treats each webhook as its scenario says.

It accepts signed webhooks at `POST /webhooks`; a wrong signature gets 401. `POST /repair` repairs the broken endpoints. It writes a
line into the journal for each webhook, before it answers.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from webhooks import signature
from webhooks.journal import Journal
from webhooks.scenarios import PERMANENT, Scenario, Treatment, treatment_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RETRY_AFTER", "Receiver"]

#: The `Retry-After` of a busy endpoint, in seconds.
RETRY_AFTER = 1
#: Seconds that a silent endpoint holds the connection, longer than the sender waits.
SILENCE = 1.5
#: Seconds between the pieces of a slow body.
DRIP = 0.05

#: The answers to a spoilt try. Other scenarios give no answer.
REFUSALS = {
    Scenario.BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    Scenario.GONE: HTTPStatus.GONE,
    Scenario.REFUSED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Scenario.BROKEN: HTTPStatus.INTERNAL_SERVER_ERROR,
}
#: Scenarios that spoil only the first tries.
PASSING = frozenset({Scenario.BUSY, Scenario.SILENT, Scenario.RESET, Scenario.REPLY_LOST})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, seed: int, secret: bytes, journal: Journal) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seed = seed
        self.secret = secret
        self.journal = journal
        self.repaired = threading.Event()
        self.closing = threading.Event()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection. A connection that must be reset is closed without a shutdown."""
        lingers, _ = struct.unpack("ii", request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))
        if lingers:
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the demo kills senders in the middle of requests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the journal is the log."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/repair":
            self.server.repaired.set()
            self._answer(HTTPStatus.NO_CONTENT)
        elif self.path != "/webhooks":
            self._answer(HTTPStatus.NOT_FOUND)
        elif not self._is_signed(body):
            self._answer(HTTPStatus.UNAUTHORIZED)
        else:
            self._receive(str(json.loads(body)["id"]))

    def _is_signed(self, body: bytes) -> bool:
        timestamp = self.headers.get(signature.TIMESTAMP, "")
        given = self.headers.get(signature.SIGNATURE, "")
        return signature.verify(self.server.secret, timestamp, given, body, now=time.time())

    def _receive(self, webhook_id: str) -> None:
        number = self.server.journal.arrive(webhook_id)
        treatment = treatment_of(self.server.seed, webhook_id)
        scenario = treatment.scenario
        if not self._is_spoilt(treatment, number):
            self._write(webhook_id, number, scenario, HTTPStatus.OK, accept=True)
            self._answer(HTTPStatus.OK, slowly=scenario is Scenario.SLOW)
        elif scenario in REFUSALS:
            self._write(webhook_id, number, scenario, REFUSALS[scenario], accept=False)
            self._answer(REFUSALS[scenario])
        else:
            self._write(webhook_id, number, scenario, 0, accept=scenario is Scenario.REPLY_LOST)
            self._hang_up(after=SILENCE if scenario is Scenario.SILENT else 0.0)

    def _is_spoilt(self, treatment: Treatment, number: int) -> bool:
        if treatment.scenario in PERMANENT:
            return True
        if treatment.scenario is Scenario.BROKEN:
            return not self.server.repaired.is_set()
        return treatment.scenario in PASSING and number <= treatment.spoilt_tries

    def _write(self, webhook_id: str, number: int, scenario: Scenario, status: int, *, accept: bool) -> None:
        self.server.journal.write(webhook_id, number, scenario=scenario, status=int(status), accept=accept)

    def _answer(self, status: HTTPStatus, *, slowly: bool = False) -> None:
        body = b"" if status is HTTPStatus.NO_CONTENT else status.phrase.encode()
        self.send_response(status)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", str(RETRY_AFTER))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        pieces = [body[at : at + 1] for at in range(len(body))] if slowly else [body]
        for piece in pieces:
            self.wfile.write(piece)
            if slowly:
                self.server.closing.wait(DRIP)

    def _hang_up(self, *, after: float) -> None:
        self.server.closing.wait(after)
        # With a linger time of zero, the kernel resets the connection.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


class Receiver:
    """A running receiver; use it in a `with` block."""

    def __init__(self, journal_path: Path, *, seed: int, secret: bytes) -> None:
        self._journal = Journal(journal_path)
        self._server = _Server(seed=seed, secret=secret, journal=self._journal)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """The address of the receiver."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._journal.close()
