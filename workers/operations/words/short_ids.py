"""Short ids: a task is named by its id or, as a commit is to git, by the beginning of it, as long as no other task's begins so.

A UUID is whole and is not searched for. What is shorter is looked up where the command looks anyway: in one dead-letter queue (read
once more, in pages; only what contains the text is decoded), or in the delay store (Redis: a sorted index, a few round trips).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from redelivery.display import safe
from redelivery.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The shortest beginning of an id that names a task, and how many tasks that it may mean are listed.
LEAST, MAX_CANDIDATES = 6, 10
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_whole(given: str) -> bool:
    """Whether this can be no beginning of another id."""
    return len(given) < LEAST or _UUID.fullmatch(given) is not None


def hint(given: Iterable[str]) -> str:
    """What to do about ids that name nothing: to give more of those that are too short to be a beginning. Empty if none is."""
    return f"; give at least {LEAST} characters of an id" if any(len(each) < LEAST for each in given) else ""


def begins(task_id: str, given: str) -> bool:
    """Whether `given` is this id or a beginning of it that is long enough."""
    return task_id == given or (not is_whole(given) and task_id.startswith(given))


def meant(given: str, task_ids: Iterable[str]) -> str | None:
    """The id that `given` names among these, None where there is none. Raises `InputError`, which lists them, for several."""
    found = {each for each in task_ids if begins(each, given)}
    if given in found or len(found) < 2:  # noqa: PLR2004 - an id that is given whole is meant, whatever else begins so
        return given if given in found else next(iter(found), None)
    named = sorted(found)[:MAX_CANDIDATES]
    more = " and others" if len(found) > MAX_CANDIDATES else ""
    msg = f"{safe(given)} may mean more than one task: {', '.join(map(safe, named))}{more}; give more of the id"
    raise InputError(msg)
