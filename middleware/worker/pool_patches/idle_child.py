"""An idle child of the pool gets its task at once, not when the event loop comes round.

Celery's pool keeps what it is given until its loop has found that a child's pipe can be written to. That of a child with nothing to
do can be: an idle worker saves a turn of its loop, a tenth of a millisecond or two, and a message that comes with others does not
wait until all of them have been looked at.

Limits: pools of processes in an event loop, as they are in the Celerys that are known. A pipe that takes no more is left to the
loop, as is a child that has just died.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...known import has

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is used of Celery's pool.
USED = ("_active_writes", "_all_inqueues", "_busy_workers", "outbound_buffer")


def feeding(pool: Any, hub: Any) -> Callable[[], None]:
    """What writes to the idle children of this pool what it has been given for them. Called in the loop's own thread."""

    def feed() -> None:
        inner: Any = getattr(pool, "_pool", None)
        if has(inner, USED) and inner.outbound_buffer:
            idle = inner._all_inqueues - inner._active_writes - inner._busy_workers  # noqa: SLF001
            if idle:
                with suppress(OSError):  # that child is gone: Celery gives its task to another one when it has noticed
                    hub.consolidate_callback(list(idle))

    return feed
