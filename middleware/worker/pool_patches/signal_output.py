"""Keep the lines that Celery's signal handlers write to the standard output from blocking the worker.

Celery writes these lines first. If the output is a full pipe that nothing reads, the handler would wait for ever, and the worker
would not stop. Here the stop is noted first, and a line that cannot be written at once is left out.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any

from celery.apps import worker as celerys

if TYPE_CHECKING:
    from collections.abc import Callable


def note_before_output(note: Callable[[], None]) -> None:
    """Have Celery's handlers call `note` before they write a line, and not wait for the output."""
    say = getattr(celerys, "safe_say", None)
    if say is not None:  # only known versions of Celery have it
        celerys.safe_say = _Saying(say.say if isinstance(say, _Saying) else say, note)


class _Saying:
    """Celery's own `safe_say`, which first calls `note`."""

    def __init__(self, say: Callable[..., None], note: Callable[[], None]) -> None:
        self.say, self._note = say, note

    def __call__(self, msg: str, f: Any = sys.__stderr__) -> None:
        self._note()
        if _is_writable(f):
            self.say(msg, f)


def _is_writable(file: Any) -> bool:
    """Whether a line can be written at once; a writable pipe takes 4,096 bytes."""
    poll = select.poll()
    try:
        poll.register(file.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # no file, closed, or without a descriptor
        return False
    return any(event & select.POLLOUT for _, event in poll.poll(0))
