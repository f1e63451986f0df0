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
from ..screen import Redirect, Screen
from ..shared.looks import leaves_marks

if TYPE_CHECKING:
    from ...letters import Letter
    from ..screen import Visit

#: The maximum number of bytes that are shown.
MAX_RAW = 65_536
#: The maximum number of dead letters, and of seconds, of a search for one whose place is unknown.
SEARCHED, SECONDS = 200_000, 4.0


def letter(visit: Visit) -> Screen:
    """Show the whole dead letter."""
    name, task_id = visit.first("queue"), visit.first("id")
    dead_letters.required(visit.runtime, name)
    place, found = found_letter(visit, name, task_id)
    redact = visit.runtime.settings.redact
    whole = as_editable(found, redact=redact)
    wants_raw = visit.first("raw") == "1" and not redact
    has_arguments = "args" in whole
    return Screen(
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
            "may_redrive": visit.may("redrive", name),
            "may_edit": visit.may("redrive", name) and visit.may("edit", name) and has_arguments,
            "is_marked": leaves_marks(visit.transport),
        },
    )


def found_letter(visit: Visit, name: str, task_id: str) -> tuple[int | None, Letter]:
    """Return the dead letter and its place. Raises `InputError` if it has left the queue, or is not found in time."""
    if leaves_marks(visit.transport):
        last = visit.services.looks.last(name)
        for place, each in [] if last is None else last.seen.letters:
            if each.task_id == task_id:
                return place, each
        msg = (
            f"the last look into {name!r} saw no dead letter of {task_id}: look again, or use "
            f"`redelivery dlq show {word(name)} --id {word(task_id)}`"
        )
        raise InputError(msg)
    near = at_place(visit.transport, name, task_id, visit.number("at"))
    near = near or at_place(visit.transport, name, task_id, 0)  # a dry run shows the oldest
    if near:
        return near[0]
    visit.head_first()
    chosen = Filter(task_ids=frozenset({task_id}))
    with visit.search():
        found = browsed(visit.transport, name, chosen, before=None, limit=1, most=SEARCHED, seconds=SECONDS)
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


def redrive(visit: Visit) -> Redirect:
    """Redrive this dead letter, as it is or changed."""
    name, task_id, changes = visit.first("queue"), visit.first("id"), visit.first("changes")
    dead_letters.required(visit.runtime, name)
    visit.require("redrive", name)
    if changes:
        visit.require("edit", name)
    edit = edit_of_json(changes, "the changed dead letter", task_id) if changes else None
    _, found = found_letter(visit, name, task_id)
    _require_the_same(visit, found)
    redrive_one(visit.transport, name, found, actor=visit.acting(), why=visit.first("why"), edit=edit)
    visit.services.looks.forget(name)
    return Redirect("/letters", {"queue": name}) if leaves_marks(visit.transport) else Redirect("/task", {"id": task_id})


def _require_the_same(visit: Visit, found: Letter) -> None:
    """Refuse if the task has died another time since its user opened the dead letter: its form may lie open for days."""
    seen = visit.first("died")
    if seen and seen != str(found.died_ms):
        msg = f"task {found.task_id} has died again since you opened this dead letter: open it again; nothing was changed"
        raise InputError(msg)


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
