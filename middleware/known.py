"""The libraries whose inner workings are used here, in the versions that this was written against and is tested with.

Of any other version nothing private is used: its users do without, as its module says, and a worker warns of it
when it starts. The same holds where a part that is looked for is not there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from .logs import log

#: How their versions begin.
KNOWN: Final = {
    "billiard": ("4.2.", "4.3."),
    "celery": ("5.6.", "5.7."),
    "kombu": ("5.6.", "5.7."),
    "redis": ("5.3.", "6.", "7.", "8."),
}


def version_of(library: str) -> str:
    """The version that is installed."""
    return str(import_module(library).__version__)


def is_known(*libraries: str) -> bool:
    """Whether these are all of versions whose inner workings we know."""
    return all(f"{version_of(each)}.".startswith(KNOWN[each]) for each in libraries)


def known_of(library: str) -> str:
    """The versions that are known, in words."""
    return "known are " + ", ".join(f"{each}*" for each in KNOWN[library])


def warn_unless_known(library: str, without: str) -> None:
    """Say that this library is not known, and what follows from doing `without`."""
    if not is_known(library):
        log.warning("library.unknown", library=library, version=version_of(library), why=f"{known_of(library)}; {without}")


def has(thing: Any, parts: tuple[str, ...]) -> bool:
    """Whether a library's object has all these parts."""
    return all(hasattr(thing, each) for each in parts)
