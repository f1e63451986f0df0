"""The page's own server, if no other application serves the page. It runs until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp


#: Requests and streams at once; seconds that a connection may be idle, and that open streams may take to end.
CONNECTIONS, IDLE, ENDING = 1000, 15, 2
#: Bytes of the head of a request.
MAX_HEAD = 32 * 1024


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Serve on this socket. Addresses are not logged, because the login's address contains the token."""
    config = uvicorn.Config(
        app,
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
