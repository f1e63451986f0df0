"""The streams of live figures to open pages. One asyncio task reads the figures for all streams, while any is open."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from redelivery.display import harmless
from redelivery.middleware.brokers.errors import EXPECTED_ERRORS
from redelivery.middleware.logs import log

from ...brokers.broker_words import broker_message
from ..guard import FAILURE, Refused
from .figures import alarms, live
from .sampler import BEAT
from .threads import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .sampler import Sampler
    from .threads import Threads

#: The maximum seconds of a stream, after which the login is checked again; and seconds without news until a sign of life.
LASTS, QUIET = 600.0, 15.0
#: The maximum number of open streams.
LIMIT = 300


class Streams:
    """The streams of one page."""

    def __init__(self, sampler: Sampler, threads: Threads) -> None:
        self._sampler, self._threads = sampler, threads
        self._open = 0
        self._news: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Condition | None = None

    def stream(self) -> Response:
        """Open a stream for one page."""
        if self._open >= LIMIT:
            return PlainTextResponse("too many pages are open\n", 503)
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _events(self) -> AsyncIterator[str]:
        self._open += 1  # not counted in `stream`: if a client leaves before its stream begins, `finally` never runs
        try:
            if self._changed is None:
                self._changed = asyncio.Condition()
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            ends, sent = time.monotonic() + LASTS, None
            yield "retry: 5000\n\n"
            while time.monotonic() < ends:
                if self._news and self._news is not sent:
                    sent = self._news
                    yield f"data: {json.dumps(sent)}\n\n"
                async with self._changed:
                    try:
                        await asyncio.wait_for(self._changed.wait(), QUIET)
                    except TimeoutError:
                        yield ": still here\n\n"
        finally:
            self._open -= 1

    async def _run(self) -> None:
        """Read the figures and wake the streams, while any is open."""
        assert self._changed is not None  # noqa: S101 - set by the first stream
        while self._open:
            self._news = await self._read()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(BEAT)

    async def _read(self) -> dict[str, Any]:
        try:
            figures = await self._threads.run(Turn(), self._sampler.figures)
            return {"figures": live(figures), "alarms": alarms(figures), "broker": figures.caveat}
        except Refused as exc:
            return {"broker": exc.why}
        except EXPECTED_ERRORS as exc:
            return {"broker": harmless(broker_message(exc) or str(exc))}
        except Exception:  # noqa: BLE001 - the streams continue
            if self._news.get("broker") != FAILURE:
                log.exception("web.failed", path="/live")
            return {"broker": FAILURE}
