"""A TCP proxy before a private broker: it cuts, delays or blocks connections, or swallows a reply or a request and then cuts.

One thread with an event loop; its methods are called from any other. Loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Proxy"]


class Proxy:
    """Stands before a server: its socket, or its port on the loopback. `url` is what a worker of a Redis connects to."""

    def __init__(self, server: str | int) -> None:
        self._server_at = server
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay = self._late = 0.0  # bytes of requests, and of answers
        self._needle: bytes | None = None
        self._unsent: bytes | None = None
        self._open: asyncio.Event | None = None
        self.swallowed = self.withheld = 0
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="chaos-proxy", daemon=True)

    @property
    def url(self) -> str:
        """Its address, as Celery takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Proxy:
        """Listen on a free port."""
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """End it."""
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Close every connection, at once; new ones are accepted."""
        self._do(self._cut())

    def delay(self, seconds: float) -> None:
        """Hold every piece back for so long, in both directions; 0 ends it."""
        self._delay = self._late = seconds

    def answer_late(self, seconds: float) -> None:
        """Hold every piece of an answer back for so long, and no request; 0 ends it."""
        self._late = seconds

    def black_hole(self) -> None:
        """From now on nothing passes, and no connection is closed."""
        self._loop.call_soon_threadsafe(self._gate().clear)

    def let_through(self) -> None:
        """End the black hole: all data that was held back arrives."""
        self._loop.call_soon_threadsafe(self._gate().set)

    def swallow_reply(self, needle: bytes) -> None:
        """The next request with this in it reaches the server; its reply does not come back, and the connection is cut."""
        self._needle = needle

    def withhold_request(self, needle: bytes) -> None:
        """The next request with this in it does not reach the server, and the connection is cut."""
        self._unsent = needle

    def _gate(self) -> asyncio.Event:
        assert self._open is not None
        return self._open

    def _do(self, what: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        server: asyncio.StreamWriter | None = None
        try:
            await self._gate().wait()
            answers, server = await self._connect()
            self._writers.add(server)
            link = _Link()
            await _first_of(self._ask(reader, server, link), self._answer(answers, writer, link))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, server):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server_at, int):
            return await asyncio.open_connection("127.0.0.1", self._server_at)
        return await asyncio.open_unix_connection(self._server_at)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
        while data := await reader.read(1 << 16):
            await self._pass(self._delay)
            if self._unsent is not None and self._unsent in data:
                self._unsent = None
                self.withheld += 1
                return
            if self._needle is not None and self._needle in data:
                self._needle, link.swallows = None, True
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
        """Ends with the connection, or with the reply that is swallowed."""
        while data := await reader.read(1 << 16):
            if link.swallows:
                self.swallowed += 1
                return
            await self._pass(self._late)
            writer.write(data)
            await writer.drain()

    async def _pass(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self._gate().wait()


@dataclass
class _Link:
    """One connection."""

    swallows: bool = False


async def _first_of(*both: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(each) for each in both]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(OSError):
            await asyncio.gather(*tasks, return_exceptions=True)
