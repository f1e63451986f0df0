"""The filter for a command's options: an id may be shortened, and ages count from now.

Refuses, with `InputError`, an empty text, an unknown reason, and an id that names no dead letter, or those of several tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.middleware.messages.events import Reason
from redelivery.settings.values import suggestion

from . import dead_letters
from .filter import UNKNOWN, Filter, Shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...ports import Transitions


def filter_of(transport: Transitions, name: str, options: Mapping[str, Any]) -> Filter:
    """The filter for the dead letters of this queue; ages count from now, by the broker's clock.

    An id that is shortened is looked up in the queue.
    """
    conditions = _conditions(transport, options)
    return Filter(task_ids=dead_letters.whole_ids(transport, name, options["task_ids"]), **conditions)


def listing_of(transport: Transitions, options: Mapping[str, Any]) -> Filter:
    """The same for a listing, without a look into the queue: each dead letter whose id begins with one of these is listed."""
    return Shortened(task_ids=frozenset(options["task_ids"]), **_conditions(transport, options))


def _conditions(transport: Transitions, options: Mapping[str, Any]) -> dict[str, Any]:
    """All conditions except the ids. Raises `InputError` for an unknown reason and an empty text (a shell variable was not set)."""
    for option, name in (("id", "task_ids"), ("task", "tasks"), ("exception", "exceptions"), ("fingerprint", "fingerprints")):
        if "" in options[name]:
            msg = f"the {option} is empty, and chooses no dead letter: give a value, or leave it out"
            raise InputError(msg)
    now_ms = transport.now_ms()
    reasons = [*map(str, Reason), UNKNOWN]
    for each in options["reasons"]:
        if each not in reasons:
            msg = f"there is no reason {each!r}{suggestion(each, reasons) or '; reasons are: ' + ', '.join(reasons)}"
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
