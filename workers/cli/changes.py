"""Changes to a letter that goes back, as an operator writes them: a JSON object with `task`, `args` or `kwargs`.

What `dlq export NAME --id ID` prints is such an object; whatever else is in it is left alone. Refuses, with `InputError`, what is
no such object, and one that was printed for another task.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from redelivery.errors import InputError

from ..operations.letters.redrive import Edit

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS: dict[str, tuple[type, str]] = {"task": (str, "text"), "args": (list, "a list"), "kwargs": (dict, "an object")}


def edit_of(file: IO[str] | None, task_ids: Sequence[str], queue: str | None) -> Edit | None:
    """What the file and `--to` ask for; None where neither is given."""
    if file is None:
        return None if queue is None else Edit(queue=queue)
    if len(task_ids) != 1:
        msg = "--with changes one dead letter: name it with --id"
        raise InputError(msg)
    try:
        given: Any = json.load(file)
    except ValueError as exc:
        msg = f"{file.name} is no JSON: {exc}"
        raise InputError(msg) from exc
    if not isinstance(given, dict) or not _KINDS.keys() & given.keys():
        msg = f"{file.name} holds no object with task, args or kwargs: begin with what `redelivery dlq export --id` prints"
        raise InputError(msg)
    if given.get("task_id", task_ids[0]) != task_ids[0]:
        msg = f"{file.name} is the dead letter of task {given['task_id']}, not of {task_ids[0]}"
        raise InputError(msg)
    values = {name: _checked(file.name, name, given[name]) for name in _KINDS if given.get(name) is not None}
    return Edit(queue=queue, **values)


def _checked(file: str, name: str, value: Any) -> Any:
    kind, words = _KINDS[name]
    if not isinstance(value, kind) or value == "":
        msg = f"{file}: {name} must be {words}, not {json.dumps(value)[:80]}"
        raise InputError(msg)
    return value
