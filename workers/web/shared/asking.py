"""Questions to the broker, in a bounded number of threads and a bounded time: the page answers even if the broker does not."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ..guard import Refused

if TYPE_CHECKING:
    from collections.abc import Callable


P = ParamSpec("P")
R = TypeVar("R")

#: Threads, requests that wait for one, and seconds that a question may take with its wait.
THREADS, WAITING, SECONDS = 8, 64, 8.0
LATE = (
    "The broker does not answer in time: is it overloaded, or is the network down? "
    "The request may still be carried out: look before you ask again."
)
BUSY = "The page is busy: the broker answers slowly, and other requests wait for it. Nothing was changed; ask again."


class Asking:
    """The threads of one page; they begin with the first question, so that a server may fork before it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="redelivery-web")
        self._places = threading.BoundedSemaphore(WAITING)

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `work` gives. Raises what it raises, and `Refused` where it takes too long or too many wait."""
        if not self._places.acquire(blocking=False):
            raise Refused(503, BUSY)
        future = self._pool.submit(functools.partial(work, *args, **kwargs))
        future.add_done_callback(lambda _: self._places.release())  # in a thread of the pool
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), SECONDS)
        except TimeoutError as exc:
            if future.done() and not future.cancelled():
                raise
            raise Refused(503, BUSY if future.cancelled() else LATE) from exc
