"""The screens, one module for each. A screen is a function of one request (`Visit`) that calls the command line's operations."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...operations.runs.operation import TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..screen import Redirect, Screen, Visit

#: The screens in the navigation.
SCREENS: tuple[tuple[str, str], ...] = (
    ("/", "Overview"),
    ("/causes", "Causes"),
    ("/letters", "Dead letters"),
    ("/delayed", "Delayed"),
    ("/task", "Task"),
    ("/queues", "Queues"),
    ("/workers", "Workers"),
    ("/operations", "Operations"),
    ("/books", "Books"),
)
#: The screens that may take long; they have their own threads.
SLOW = frozenset({"/causes", "/letters", "/letter", "/task", "/workers", "/operations/preview"})
#: The titles for a head that is sent early.
TITLES = {**dict(SCREENS), "/letter": "Dead letter", "/operations/preview": "Dry run"}


def asks_broker(path: str, query: Mapping[str, object]) -> bool:
    """Whether this screen uses the broker. Books reads files, and Task without an id is only a form."""
    return path != "/books" and (path != "/task" or "id" in query)


def screens() -> Mapping[str, Callable[[Visit], Screen | Redirect]]:
    """Return every screen, by its address."""
    from . import books, causes, delayed, letter, letters, operations, overview, queues, task, workers  # noqa: PLC0415 - the screens know the page

    return {
        "/": overview.overview,
        "/causes": causes.causes,
        "/letters": letters.letters,
        "/letter": letter.letter,
        "/delayed": delayed.delayed,
        "/task": task.task,
        "/queues": queues.queues,
        "/queue": queues.queue,
        "/workers": workers.workers,
        "/operations": operations.operations,
        "/operation": operations.operation,
        "/operations/preview": operations.planned,
        "/books": books.books,
    }


def acts() -> Mapping[str, Callable[[Visit], Screen | Redirect]]:
    """Return the function of each form that changes something, by its address."""
    from . import delayed, letter, letters, operations  # noqa: PLC0415 - as above

    return {
        "/look": letters.look,
        "/letter/redrive": letter.redrive,
        "/operations/begin": operations.start,
        **{f"/operation/{name}": functools.partial(operations.turn, name) for name in TURNS},
        **{f"/delayed/{act}": functools.partial(delayed.change, act) for act in delayed.ACTS},
    }
