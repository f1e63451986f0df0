"""Redrives one dead letter at once, changed or unchanged, and records that in the audit.

If reading does not mark letters on this broker, the letter that was shown is sent. Otherwise the letter is searched again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.errors import InputError, RedriveError
from redelivery.middleware.ports import Answer, Capability
from redelivery.middleware.transitions.homes import Homes

from ...brokers.broker import broker_of
from ..letters.filter import Filter
from ..letters.redrive.edits import changed
from ..letters.redrive.redrive import redrive, returned
from ..letters.walk import WalkOptions
from ..spans import send_span
from .audit import Act, Acted, acted, record

if TYPE_CHECKING:
    from redelivery.middleware.ports import Transport

    from ...letters import Letter
    from ..letters.redrive.redrive import Edit


def redrive_one(transport: Transport, name: str, letter: Letter, *, actor: str, why: str, edit: Edit | None) -> str:
    """Redrive a dead letter, and return its new queue. Raises `InputError` if it has left, `RedriveError` if it must stay."""
    if Capability.BROWSE_LETTERS_UNMARKED in transport.capabilities:
        move = returned(letter, Homes(transport, name), edit, actor)
        (answer,) = broker_of(transport).letters.redrive_many(name, [move.parts])
        if isinstance(answer, Exception):
            raise answer
        if answer is not Answer.DONE:
            msg = f"the dead letter of task {letter.task_id} has left {name!r} meanwhile: nothing was changed"
            raise InputError(msg)
        send_span(transport, letter, name, move.parts[-1], move.prepared_ns)
        target = move.queue
    else:
        done = redrive(transport, name, Filter(task_ids=frozenset({letter.task_id})), WalkOptions(limit=1), edit=edit, actor=actor)
        if not done.moved:
            msg = next(iter(done.left), f"the dead letter of task {letter.task_id} has left {name!r} meanwhile")
            raise RedriveError(msg)
        target = next(iter(done.by_queue))
    options = {"edited": edited} if (edited := changed(edit, letter)) else {}
    said = acted(Act.REDRIVE, Acted.DONE, name, actor=actor, why=why, options=options, tasks=[letter.task_id], result={"moved": 1})
    record(transport, said)
    return target
