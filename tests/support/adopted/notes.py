"""Notes of each run, in the file that the tests read."""

from __future__ import annotations

from typing import Any

from tests.support import notes

__all__ = ["note"]


def note(task: Any, **facts: Any) -> int:
    """Append one line. Returns the number of this attempt."""
    attempt = int(task.request.retries) + 1
    notes.note(task.request.id, attempt=attempt, **facts)
    return attempt
