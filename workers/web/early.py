"""Sends the head of a screen early, so that the browser shows it during a search.

A screen reports the beginning of a search (`Visit.head_first`); by then the broker has answered once. If the search takes longer,
the answer begins with status 200 and the head. A later error is shown in place of the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.responses import Response

#: Seconds of a search before the head is sent.
SOON = 0.02
#: The end of the head (`base.html`).
MAIN = b'<main id="main">'


class Early:
    """One request for a screen. `head` renders a screen that has only its head."""

    def __init__(self, head: Callable[[], bytes]) -> None:
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()

    def searches(self) -> None:
        """Report that a search begins. Called in the thread that renders the screen."""
        self._loop.call_soon_threadsafe(self._begun.set)

    async def answer(self, rendering: Coroutine[None, None, Response]) -> Response:
        """Return the whole screen, or a stream of its head and then the rest."""
        screen = asyncio.ensure_future(rendering)
        searching = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({screen, searching}, return_when=asyncio.FIRST_COMPLETED)
            if not screen.done():
                await asyncio.wait({screen}, timeout=SOON)
        except asyncio.CancelledError:
            screen.cancel()
            raise
        finally:
            searching.cancel()
        return screen.result() if screen.done() else StreamingResponse(self._parts(screen), media_type="text/html")

    async def _parts(self, screen: asyncio.Future[Response]) -> AsyncIterator[bytes]:
        try:
            yield self._head().partition(MAIN)[0]
            before, main, rest = bytes((await screen).body).partition(MAIN)
            yield main + rest or before  # an error as plain text has no head
        finally:
            screen.cancel()
