"""Changes to a letter that goes back, as a file says them: what `dlq export NAME --id ID` prints."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from redelivery.errors import InputError

from ..operations.letters.edits import edit_of_json
from ..operations.letters.redrive import Edit

if TYPE_CHECKING:
    from collections.abc import Sequence


def edit_of(file: IO[str] | None, task_ids: Sequence[str], queue: str | None) -> Edit | None:
    """What the file and `--to` ask for; None where neither is given."""
    if file is None:
        return None if queue is None else Edit(queue=queue)
    if len(task_ids) != 1:
        msg = "--with changes one dead letter: name it with --id"
        raise InputError(msg)
    return edit_of_json(file.read(), file.name, task_ids[0], queue)
