"""The redrive: a dead letter goes back to its origin queue, or to a named queue, and its task runs in a new generation.

The message keeps its history. It leaves its chord, because the chord has counted its failure already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..messages.body import edited, without_chord
from ..messages.envelope import Envelope, count
from ..messages.events import Outcome
from ..messages.recording import about
from ..messages.steps import redriven, sealed
from .homes import Home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..messages.events import Event
    from .homes import Homes


class Redriven(NamedTuple):
    """A dead letter that goes back: its home, its new bytes and priority, the event, and whether it left a chord."""

    home: Home
    raw: bytes
    priority: int
    event: Event
    left_chord: bool


def redrive(  # noqa: PLR0917 - a dead letter and its place
    letter: dict[str, Any],
    raw: bytes,
    lies_in: str,
    envelope: Envelope | None = None,
    homes: Homes | None = None,
    to: str | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    task: str | None = None,
    **facts: Any,
) -> Redriven:
    """Turn a dead letter in the queue `lies_in` into the message that goes to its origin, or to the queue `to`.

    Without `homes` it stays in the same queue: a worker consumes the dead-letter queue and runs its tasks. `args`, `kwargs` and
    `task` replace the letter's own; `facts` are the event's. Raises `EnvelopeError`, whose text says why it cannot go back.
    """
    known = Envelope.of(letter["headers"]) if envelope is None else envelope
    message, left_chord = without_chord(letter)
    message = edited(message, args=args, kwargs=kwargs, task=task)
    home = Home(lies_in) if homes is None else homes.of(known) if to is None else homes.to(to)
    again = redriven(message, home.address, on_purpose=homes is not None, known=known)
    counts = {"generation": known.generation + 1, "attempt": 0, "delivery": 0}
    event = about(letter["headers"], home.queue, raw, Outcome.REDRIVEN, known, **{**counts, **facts})
    return Redriven(home, sealed(again), count(again["properties"].get("priority")), event, left_chord)
