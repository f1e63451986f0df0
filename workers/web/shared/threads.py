"""Runs requests in a bounded number of threads and a bounded time: the page answers even if the broker does not."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from redelivery.display import harmless
from redelivery.middleware.logs import log

from ..guard import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

P = ParamSpec("P")
R = TypeVar("R")

#: The number of threads, the maximum number of waiting requests, and the maximum seconds of a request with its wait.
THREADS, WAITING, SECONDS = 8, 64, 8.0
LATE = "The broker does not answer in time: is it overloaded, or is the network down? "
UNDONE, UNKNOWN = "Nothing was changed.", "The request may be carried out all the same: look before you ask again."
BUSY = "The page is busy: the broker answers slowly, and other requests wait for it. Nothing was changed; ask again."


class Turn:
    """One request of a user. It may begin a change only until the page gives up waiting for it."""

    def __init__(self, path: str = "", user: str = "") -> None:
        self._path, self._user = path, user
        self._lock = threading.Lock()
        self._has_begun = self._is_over = False

    def begin(self) -> None:
        """Note that a change begins. Call it right before the change. Raises as `require`."""
        with self._lock:
            self.require()
            self._has_begun = True

    def require(self) -> None:
        """Raise `Refused` if the page has already answered "too late"."""
        if self._is_over:
            raise Refused(503, LATE + UNDONE)

    def give_up(self, work: Future[Any]) -> Refused:
        """Give up waiting: the request can begin no change any more. If a change has begun, its end is logged."""
        with self._lock:
            self._is_over = True
        if self._has_begun:
            work.add_done_callback(self._log_end)
        return Refused(503, LATE + self.result)

    def _log_end(self, work: Future[Any]) -> None:
        exc = work.exception()
        if exc is None:
            log.info("web.late_done", path=self._path, user=self._user)
        else:
            log.warning("web.late_failed", path=self._path, user=self._user, error=harmless(f"{type(exc).__name__}: {exc}"))

    @property
    def result(self) -> str:
        """Whether the request may have changed something, as a text."""
        return UNKNOWN if self._has_begun else UNDONE


class Threads:
    """A pool of threads. It starts with the first request, so that a server may fork before."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="redelivery-web")
        self._places = threading.BoundedSemaphore(WAITING)

    async def run(self, turn: Turn, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of `work`. Raises its errors, and `Refused` if it takes too long or too many requests wait."""
        if not self._places.acquire(blocking=False):
            raise Refused(503, BUSY)
        future = self._pool.submit(functools.partial(work, *args, **kwargs))
        future.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), SECONDS)
        except TimeoutError as exc:
            if future.cancelled():
                raise Refused(503, BUSY) from exc
            if future.done():  # it ended at this moment, or `work` raised the TimeoutError
                return future.result()
            raise turn.give_up(future) from exc
        except asyncio.CancelledError:  # the client has disconnected
            turn.give_up(future)
            raise
