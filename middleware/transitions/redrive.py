"""The redrive: a dead letter goes back to where it came from, or where somebody wants it, and its task lives once more.

Its history goes with it. It is no member of its chord any more, which has counted its failure already.
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
    """A dead letter on its way back: where to, its bytes and priority as it lives again, the event, and whether it left a chord."""

    home: Home
    raw: bytes
    priority: int
    event: Event
    left_chord: bool


def redrive(  # noqa: PLR0917 - a letter, and where it lies
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
    """This letter, whose bytes lie in a dead-letter queue, as it goes to its origin, or to the queue `to`.

    Without `homes` nobody wants it back: a worker merely consumes that queue, and it lives on in it. `args`, `kwargs` and `task`
    replace its own; `facts` are the event's. Raises `EnvelopeError`, whose message is the reason why it cannot go back.
    """
    known = Envelope.of(letter["headers"]) if envelope is None else envelope
    message, left_chord = without_chord(letter)
    message = edited(message, args=args, kwargs=kwargs, task=task)
    home = Home(lies_in) if homes is None else homes.of(known) if to is None else homes.to(to)
    again = redriven(message, home.address, on_purpose=homes is not None, known=known)
    counts = {"generation": known.generation + 1, "attempt": 0, "delivery": 0}
    event = about(letter["headers"], home.queue, raw, Outcome.REDRIVEN, known, **{**counts, **facts})
    return Redriven(home, sealed(again), count(again["properties"].get("priority")), event, left_chord)
