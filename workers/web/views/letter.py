"""One dead letter: why it died, each attempt and its delay, the traceback, the arguments, and its bytes on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redelivery.display import word
from redelivery.errors import InputError

from ...operations.letters import dead_letters
from ...operations.letters.filter import Filter
from ...operations.letters.reading.browse import at_place, browsed
from ...operations.letters.reading.whole import as_editable
from ...operations.letters.redrive.edits import edit_of_json
from ...operations.runs.single import redrive_one
from ...operations.words.numbers import plain
from ..asked import Go, Shown
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ...letters import Letter
    from ..asked import Asked

#: The maximum number of bytes that are shown.
MAX_RAW = 65_536
#: The maximum number of dead letters, and of seconds, of a search for one whose place is unknown.
SEARCHED, SECONDS = 200_000, 4.0


def letter(asked: Asked) -> Shown:
    """Show the whole dead letter."""
    name, task_id = asked.first("queue"), asked.first("id")
    dead_letters.required(asked.runtime, name)
    place, found = found_letter(asked, name, task_id)
    redact = asked.runtime.settings.redact
    whole = as_editable(found, redact=redact)
    wants_raw = asked.first("raw") == "1" and not redact
    has_arguments = "args" in whole
    return Shown(
        "letter.html",
        {
            "name": name,
            "letter": whole,
            "place": place,
            "origin": found.origin_queue,
            "attempts": _attempts(whole),
            "has_arguments": has_arguments,
            "edited": json.dumps(plain({"task": whole["task"], "args": whole["args"], "kwargs": whole["kwargs"]}), indent=2)
            if has_arguments
            else "",
            "redact": redact,
            "raw": repr(found.raw[:MAX_RAW])[2:-1] if wants_raw else None,
            "is_cut": len(found.raw) > MAX_RAW,
            "chord": found.headers.get("group") is not None,
            "may_redrive": asked.may("redrive", name),
            "may_edit": asked.may("redrive", name) and asked.may("edit", name) and has_arguments,
            "is_marked": leaves_marks(asked.transport),
        },
    )


def found_letter(asked: Asked, name: str, task_id: str) -> tuple[int | None, Letter]:
    """Return the dead letter and its place. Raises `InputError` if it has left the queue, or is not found in time."""
    if leaves_marks(asked.transport):
        last = asked.desk.looks.last(name)
        for place, each in [] if last is None else last.seen.letters:
            if each.task_id == task_id:
                return place, each
        msg = (
            f"the last look into {name!r} saw no dead letter of {task_id}: look again, or use "
            f"`redelivery dlq show {word(name)} --id {word(task_id)}`"
        )
        raise InputError(msg)
    near = at_place(asked.transport, name, task_id, asked.number("at"))
    near = near or at_place(asked.transport, name, task_id, 0)  # a dry run shows the oldest
    if near:
        return near[0]
    asked.head_first()
    chosen = Filter(task_ids=frozenset({task_id}))
    with asked.search():
        found = browsed(asked.transport, name, chosen, before=None, limit=1, most=SEARCHED, seconds=SECONDS)
    if found.letters:
        return found.letters[0]
    if found.next is not None:
        msg = (
            f"task {task_id} is not among the newest {found.looked_at:,} of {found.total:,} dead letters of {name!r}: "
            f"`redelivery dlq show {word(name)} --id {word(task_id)}` reads them all"
        )
        raise InputError(msg)
    msg = f"{name!r} holds no dead letter of task {task_id} any more: the screen Task says where it is"
    raise InputError(msg)


def redrive(asked: Asked) -> Go:
    """Redrive this dead letter, as it is or changed."""
    name, task_id, changes = asked.first("queue"), asked.first("id"), asked.first("changes")
    dead_letters.required(asked.runtime, name)
    asked.require("redrive", name)
    if changes:
        asked.require("edit", name)
    edit = edit_of_json(changes, "the changed dead letter", task_id) if changes else None
    _, found = found_letter(asked, name, task_id)
    redrive_one(asked.transport, name, found, actor=asked.acting(), why=asked.first("why"), edit=edit)
    asked.desk.looks.forget(name)
    return Go("/letters", {"queue": name}) if leaves_marks(asked.transport) else Go("/task", {"id": task_id})


def _attempts(whole: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "at_ms": each.get("at") if isinstance(each.get("at"), int) else None,
            "worker": each.get("worker") or "",
            "delay_ms": each.get("delay") if isinstance(each.get("delay"), (int, float)) else None,
            "exception": each.get("exception") or "",
        }
        for each in whole["attempts_made"]
    ]
