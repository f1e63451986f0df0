"""The choice among dead letters as people give it, made a filter: ids may be shortened, and ages count from now.

Refuses, with `InputError`, an empty text, a reason that there is not, and an id that names no letter, or several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError
from redelivery.middleware.messages.events import Reason
from redelivery.settings.values import suggestion

from . import dead_letters
from .filter import Filter, Shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...ports import Transitions


def filter_of(transport: Transitions, name: str, options: Mapping[str, Any]) -> Filter:
    """The filter for the dead letters of this queue; ages count from now, by the broker's clock.

    Looks into the queue for an id that is not whole.
    """
    conditions = _conditions(transport, options)
    return Filter(task_ids=dead_letters.whole_ids(transport, name, options["task_ids"]), **conditions)


def listing_of(transport: Transitions, options: Mapping[str, Any]) -> Filter:
    """The same for a listing, which asks nothing of the queue: each dead letter whose id begins as one of these is listed."""
    return Shortened(task_ids=frozenset(options["task_ids"]), **_conditions(transport, options))


def _conditions(transport: Transitions, options: Mapping[str, Any]) -> dict[str, Any]:
    """All but the ids. Raises `InputError` for a reason that there is not, and for an empty text: a shell variable was not set."""
    for option, name in (("id", "task_ids"), ("task", "tasks"), ("exception", "exceptions"), ("fingerprint", "fingerprints")):
        if "" in options[name]:
            msg = f"the {option} is empty, and chooses no dead letter: give a value, or leave it out"
            raise InputError(msg)
    now_ms = transport.now_ms()
    for each in options["reasons"]:
        if each not in set(Reason):
            others = "; reasons are: " + ", ".join(Reason)
            msg = f"there is no reason {each!r}{suggestion(each, map(str, Reason)) or others}"
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
