"""The page's own server, if no other application serves the page. It runs until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    import socket

    from starlette.types import ASGIApp


#: Requests and streams at once; seconds that a connection may be idle, and that open streams may take to end.
CONNECTIONS, IDLE, ENDING = 1000, 15, 2
#: Bytes of the head of a request.
MAX_HEAD = 32 * 1024


class Connection(H11Protocol):
    """A connection that is closed if no whole head of a request arrives between two looks: uvicorn would wait for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """As asyncio calls it."""
        super().connection_made(transport)
        self.loop.call_later(IDLE, self._look, self.cycle)

    def _look(self, before: object) -> None:
        if self.conn.their_state is h11.IDLE and self.cycle is before:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(IDLE, self._look, self.cycle)


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve on this socket. Addresses are not logged, because the login's address contains the token."""
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
