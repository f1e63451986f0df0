"""The libraries whose private parts this project uses, and the versions that are tested.

With another version, or if a part is missing, nothing private is used; each module says what it then does instead. A worker that
starts with another version logs a warning.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from .logs import log

#: Prefixes of the known versions.
KNOWN: Final = {
    "billiard": ("4.2.", "4.3."),
    "celery": ("5.6.", "5.7."),
    "kombu": ("5.6.", "5.7."),
    "redis": ("5.3.", "6.", "7.", "8."),
}


def version_of(library: str) -> str:
    """The installed version."""
    return str(import_module(library).__version__)


def is_known(*libraries: str) -> bool:
    """Whether all these libraries have versions whose private parts are known."""
    return all(f"{version_of(each)}.".startswith(KNOWN[each]) for each in libraries)


def known_of(library: str) -> str:
    """The known versions, in words."""
    return "known are " + ", ".join(f"{each}*" for each in KNOWN[library])


def warn_unless_known(library: str, without: str) -> None:
    """Log a warning if this library's version is not known; `without` says what does not work."""
    if not is_known(library):
        log.warning("library.unknown", library=library, version=version_of(library), why=f"{known_of(library)}; {without}")


def has(thing: Any, parts: tuple[str, ...]) -> bool:
    """Whether a library's object has all these parts."""
    return all(hasattr(thing, each) for each in parts)
