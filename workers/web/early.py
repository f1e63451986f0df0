"""The head of a screen that searches: it is sent early, so that the browser shows it while the rest is looked for.

A screen says when it begins to search (`Asked.head_first`): the broker has answered then. If the search is not over soon, the
answer begins with status 200 and the head. A later error is shown in place of the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.responses import Response

#: Seconds that a search may take before the head is sent.
SOON = 0.02
#: Where the head ends (`base.html`).
MAIN = b'<main id="main">'


class Early:
    """One request for a screen. `head` draws a screen with nothing below its head."""

    def __init__(self, head: Callable[[], bytes]) -> None:
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()

    def searches(self) -> None:
        """The screen begins to search; called in the thread that draws it."""
        self._loop.call_soon_threadsafe(self._begun.set)

    async def answer(self, drawn: Coroutine[None, None, Response]) -> Response:
        """The whole screen; or its head, with the rest to follow."""
        drawing = asyncio.ensure_future(drawn)
        searching = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({drawing, searching}, return_when=asyncio.FIRST_COMPLETED)
            if not drawing.done():
                await asyncio.wait({drawing}, timeout=SOON)
        except asyncio.CancelledError:
            drawing.cancel()
            raise
        finally:
            searching.cancel()
        return drawing.result() if drawing.done() else StreamingResponse(self._parts(drawing), media_type="text/html")

    async def _parts(self, drawing: asyncio.Future[Response]) -> AsyncIterator[bytes]:
        try:
            yield self._head().partition(MAIN)[0]
            before, main, rest = bytes((await drawing).body).partition(MAIN)
            yield main + rest or before  # a client that takes no HTML gets an error as plain text, without a head
        finally:
            drawing.cancel()
