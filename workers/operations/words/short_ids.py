"""Short ids: a task may be named by the beginning of its id, as a commit in git, if no other task's id begins so.

A UUID is whole and is not searched for. A shorter text is searched where the command looks anyway: in one dead-letter queue (read
once more, in pages; only letters that contain the text are decoded), or in the delay store (Redis: a sorted index, a few round
trips).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redelivery.display import safe
from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The shortest beginning of an id that names a task, and how many tasks an error lists if it may mean several.
LEAST, MAX_CANDIDATES = 6, 10
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_whole(given: str) -> bool:
    """Whether this is taken as a whole id, and not as the beginning of one: a UUID, or a text that is too short."""
    return len(given) < LEAST or _UUID.fullmatch(given) is not None


def hint(given: Iterable[str]) -> str:
    """For an error about ids that name nothing: advice to give more characters. Empty if none of the ids is too short."""
    return f"; give at least {LEAST} characters of an id" if any(len(each) < LEAST for each in given) else ""


def begins(task_id: str, given: str) -> bool:
    """Whether `given` is this id or a beginning of it that is long enough."""
    return task_id == given or (not is_whole(given) and task_id.startswith(given))


def meant(given: str, task_ids: Iterable[str]) -> str | None:
    """The id that `given` names among these, None if there is none. Raises `InputError`, which lists the ids, if several."""
    found = {each for each in task_ids if begins(each, given)}
    if given in found or len(found) < 2:  # noqa: PLR2004 - an id that is given whole is meant, even if others begin with it
        return given if given in found else next(iter(found), None)
    named = sorted(found)[:MAX_CANDIDATES]
    more = " and others" if len(found) > MAX_CANDIDATES else ""
    msg = f"{safe(given)} may mean more than one task: {', '.join(map(safe, named))}{more}; give more of the id"
    raise InputError(msg)
