"""Makes a filter from a command's options. Ids may be shortened, and ages count from now.

Raises `InputError` for an empty text, an unknown reason, and an id that matches no task or several tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.settings.values import suggestion

from ...letters import REASONS
from . import dead_letters
from .filter import Filter, Shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redelivery.middleware.ports import Transport

#: The options of the command line that choose dead letters, and the filter's name for each.
NAMES = {"id": "task_ids", "reason": "reasons", "task": "tasks", "exception": "exceptions", "fingerprint": "fingerprints"}


def filter_of(transport: Transport, name: str, options: Mapping[str, Any]) -> Filter:
    """Return the filter for the dead letters of this queue. Shortened ids are looked up in the queue."""
    conditions = _conditions(transport, options)
    return Filter(task_ids=dead_letters.whole_ids(transport, name, options["task_ids"]), **conditions)


def listing_of(transport: Transport, options: Mapping[str, Any]) -> Filter:
    """Return the filter for a listing, which lists each dead letter whose id begins with a given one. Does not read the queue."""
    return Shortened(task_ids=frozenset(options["task_ids"]), **_conditions(transport, options))


def _conditions(transport: Transport, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all conditions except the ids. An empty text is refused: it may come from a shell variable that is not set."""
    for option, name in NAMES.items():
        if option != "reason" and "" in options[name]:
            msg = f"the {option} is empty, and chooses no dead letter: give a value, or leave it out"
            raise InputError(msg)
    now_ms = transport.now_ms()
    for each in options["reasons"]:
        if each not in REASONS:
            msg = f"there is no reason {each!r}{suggestion(each, REASONS) or '; reasons are: ' + ', '.join(REASONS)}"
            raise InputError(msg)

    def ago(seconds: float | None) -> int | None:
        return None if seconds is None else now_ms - round(seconds * 1000)

    return {
        "reasons": frozenset(options["reasons"]),
        "tasks": options["tasks"],
        "exceptions": options["exceptions"],
        "fingerprints": options["fingerprints"],
        "died_before_ms": ago(options["older_than"]),
        "died_after_ms": ago(options["newer_than"]),
    }
