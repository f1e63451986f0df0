"""The ids of events whose broker gives them none: one publisher's are numbered without a gap, so that a missing one shows."""

from __future__ import annotations

import itertools
import os
import time
import uuid

__all__ = ["Numbering"]


class Numbering:
    """Gives events their ids: one publisher's, in one process."""

    def __init__(self) -> None:
        self._pid = 0
        self._publisher = ""
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """The next id; a forked process is a publisher of its own."""
        if self._pid != os.getpid():
            self._pid, self._publisher, self._numbers = os.getpid(), uuid.uuid4().hex[:12], itertools.count(1)
        return f"{time.time_ns() // 1_000_000}-{self._publisher}.{next(self._numbers)}"

    def begin_anew(self) -> None:
        """Be another publisher: the last id may not have arrived, and then its number would look like one that was lost."""
        self._pid = 0
