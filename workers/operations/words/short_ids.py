"""Short ids: the beginning of an id may name a task, as a commit in git, if no other task's id begins with it.

A UUID is whole. A shorter text is searched in the dead-letter queue or the delay store of the command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redelivery.display import safe
from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The minimum length of a beginning of an id, and the maximum number of tasks that an error lists.
LEAST, MAX_CANDIDATES = 6, 10
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_whole(given: str) -> bool:
    """Whether this counts as a whole id: a UUID, or a text that is too short for a beginning."""
    return len(given) < LEAST or _UUID.fullmatch(given) is not None


def hint(given: Iterable[str]) -> str:
    """Return the advice to give more characters, for an error about ids that match nothing; empty if no id is too short."""
    return f"; give at least {LEAST} characters of an id" if any(len(each) < LEAST for each in given) else ""


def begins(task_id: str, given: str) -> bool:
    """Whether `given` is this id, or a beginning of it that is long enough."""
    return task_id == given or (not is_whole(given) and task_id.startswith(given))


def meant(given: str, task_ids: Iterable[str]) -> str | None:
    """Return the one id among these that `given` matches; None if it matches none. Raises `InputError` if it matches several."""
    found = {each for each in task_ids if begins(each, given)}
    if given in found or len(found) < 2:  # noqa: PLR2004 - a whole id wins, even if other ids begin with it
        return given if given in found else next(iter(found), None)
    named = sorted(found)[:MAX_CANDIDATES]
    more = " and others" if len(found) > MAX_CANDIDATES else ""
    msg = f"{safe(given)} may mean more than one task: {', '.join(map(safe, named))}{more}; give more of the id"
    raise InputError(msg)
