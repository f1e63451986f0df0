"""Reads an operator's changes to a redriven dead letter: a JSON object with `task`, `args` or `kwargs`. Other fields are ignored.

Raises `InputError` for any other text, and for the object of another task's dead letter.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from redelivery.errors import InputError

from .redrive import Edit

if TYPE_CHECKING:
    from ....letters import Letter

_KINDS: dict[str, tuple[type, str]] = {"task": (str, "text"), "args": (list, "a list"), "kwargs": (dict, "an object")}


def edit_of_json(text: str, source: str, task_id: str, queue: str | None = None) -> Edit:
    """Parse the changes. `source` names the text in errors. `queue` replaces the letter's origin queue."""
    try:
        given: Any = json.loads(text.removeprefix("\ufeff"))  # some editors begin a file with a byte order mark
    except (ValueError, RecursionError) as exc:
        msg = f"{source} is not JSON: {exc}"
        raise InputError(msg) from exc
    if not isinstance(given, dict) or not _KINDS.keys() & given.keys():
        msg = f"{source} holds no object with task, args or kwargs: begin with what `redelivery dlq export --id` prints"
        raise InputError(msg)
    if given.get("task_id", task_id) != task_id:
        msg = f"{source} is the dead letter of task {given['task_id']}, not of {task_id}"
        raise InputError(msg)
    values = {name: _checked(source, name, given[name]) for name in _KINDS if given.get(name) is not None}
    return Edit(queue=queue, **values)


def changed(edit: Edit | None, letter: Letter | None) -> list[str]:
    """Return the fields that an edit changes in this dead letter. A field that cannot be compared counts as changed."""
    if edit is None:
        return []
    call = None if letter is None else letter.call()
    old: dict[str, Any] = {} if call is None else {"args": call[0], "kwargs": call[1]}
    old |= {} if letter is None else {"task": letter.task}
    given = {name: getattr(edit, name) for name in _KINDS}
    return [name for name, value in given.items() if value is not None and (name not in old or old[name] != value)]


def _checked(source: str, name: str, value: Any) -> Any:
    kind, words = _KINDS[name]
    if not isinstance(value, kind) or value == "":
        msg = f"{source}: {name} must be {words}, not {json.dumps(value)[:80]}"
        raise InputError(msg)
    return value
