"""A child of the pool that has ended, and cannot be waited for yet.

A child closes its files a moment before the kernel lets its parent wait for it. Celery hears of the first, asks about the second
once, and no longer watches that child: the pool then has one child less until Celery's timer comes round, in five seconds. And
where the worker loses its connection in that time, the new event loop is to watch a file that is gone, and the whole worker ends
with `ValueError: file descriptor is None`. So such a child is asked for again, soon, and can be watched again.

Limits: pools of processes in an event loop, as they are in Celery 5.6 and 5.7; in any other nothing is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...known import has

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds until a child is asked for again: at first, and at the longest. From then on Celery's own timer does.
FIRST_WAIT, MAX_WAIT = 0.005, 2.0
#: What is used of Celery's pool.
USED = ("_event_process_exit", "_pool", "maintain_pool")


def ask_again(pool: Any) -> None:
    """Have this pool ask again for a child that has ended and cannot be waited for yet."""
    inner: Any = getattr(pool, "_pool", None)
    if has(inner, USED) and not isinstance(inner._event_process_exit, _Asking):  # noqa: SLF001
        inner._event_process_exit = _Asking(inner, inner._event_process_exit)  # noqa: SLF001


class _Asking:
    """The pool's own `_event_process_exit`, and the asking after it."""

    def __init__(self, pool: Any, exited: Callable[[Any, Any], None]) -> None:
        self._pool, self._exited = pool, exited

    def __call__(self, hub: Any, child: Any) -> None:
        """What Celery's loop calls when a child has closed its files."""
        self._exited(hub, child)
        self._look(hub, child, FIRST_WAIT)

    def _look(self, hub: Any, child: Any, wait: float) -> None:
        if child not in self._pool._pool:  # noqa: SLF001
            return
        if getattr(child, "_sentinel_poll", 0) is None:
            del child._sentinel_poll  # noqa: SLF001 - Celery makes a new one where there is none
        if wait <= MAX_WAIT:
            hub.call_later(wait, self._again, hub, child, wait * 2)

    def _again(self, hub: Any, child: Any, wait: float) -> None:
        self._pool.maintain_pool()
        self._look(hub, child, wait)
