"""What Celery's handlers of signals say on the standard output: it holds nobody up.

Celery writes these lines inside the handler, before anything else. Where nobody reads the pipe, and it is full, the handler would
wait there for ever, and the worker would never hear that it was told to stop. Here the stop is noted first, and a line that cannot
be written at once is left out.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any

from celery.apps import worker as celerys

if TYPE_CHECKING:
    from collections.abc import Callable


def hear_first(note: Callable[[], None]) -> None:
    """Have Celery's handlers call `note` before they say something, and say it without waiting."""
    say = getattr(celerys, "safe_say", None)
    if say is not None:  # of a Celery that we know
        celerys.safe_say = _Saying(say.say if isinstance(say, _Saying) else say, note)


class _Saying:
    """Celery's own `safe_say`, and before it the noting."""

    def __init__(self, say: Callable[..., None], note: Callable[[], None]) -> None:
        self.say, self._note = say, note

    def __call__(self, msg: str, f: Any = sys.__stderr__) -> None:
        """What the handlers call."""
        self._note()
        if _takes_a_line(f):
            self.say(msg, f)


def _takes_a_line(file: Any) -> bool:
    """Whether a line can be written there at once; a pipe that can be written to takes 4,096 bytes."""
    poll = select.poll()
    try:
        poll.register(file.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # none, closed, or no file
        return False
    return any(event & select.POLLOUT for _, event in poll.poll(0))
