"""The app that gets forged headers. Its dead-letter handler redrives every dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.notes import note
from tests.support.shop import app

if TYPE_CHECKING:
    from redelivery import Letter
    from redelivery.middleware.transitions.letter import LetterDecision

__all__ = ["app"]


@app.task(bind=True)
def take(self: Any, *_: Any, **__: Any) -> None:
    note(str(self.request.id)[:40])


@app.task(bind=True)
def fails(self: Any, *_: Any, **__: Any) -> None:
    note(str(self.request.id)[:40])
    message = "no"
    raise ValueError(message)


@app.task(bind=True)
def again(self: Any, times: int = 0) -> None:
    """Retries once with other arguments."""
    note(str(self.request.id)[:40])
    if not times:
        raise self.retry(args=(1,), countdown=0)


@app.redelivery.dead_letter_handler("handled")
def decide(letter: Letter) -> LetterDecision:
    """Redrive the dead letter to the queue that its headers name."""
    return letter.redrive()
