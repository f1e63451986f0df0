"""The page's own server, for a page that no other application serves. It runs until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    import socket

    from starlette.types import ASGIApp

#: The maximum number of connections; the maximum seconds of an idle connection, and until open streams have ended.
CONNECTIONS, IDLE, ENDING = 1000, 15, 2
#: The maximum bytes of the head of a request.
MAX_HEAD = 32 * 1024


class Connection(H11Protocol):
    """A connection that is closed if no whole head of a request arrives in time: uvicorn would wait for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """As in `asyncio.Protocol`."""
        super().connection_made(transport)
        self.loop.call_later(IDLE, self._close_idle, self.cycle)

    def _close_idle(self, before: object) -> None:
        if self.conn.their_state is h11.IDLE and self.cycle is before:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(IDLE, self._close_idle, self.cycle)


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve on this socket. Addresses are not logged, because the login's address contains the token.

    SIGTERM ends the process with exit code 0: uvicorn raises the signal again when it has stopped.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=ENDING,
        h11_max_incomplete_event_size=MAX_HEAD,
    )
    uvicorn.Server(config).run(sockets=[listening])
