"""The tests' app with a dead-letter handler. The first argument of the dead task says what the handler decides."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.notes import note
from tests.support.shop import app

if TYPE_CHECKING:
    from redelivery import Letter
    from redelivery.middleware.transitions.letter import LetterDecision

__all__ = ["app"]


def runs_of(task_id: str) -> int:
    lines = Path(os.environ["SHOP_RUNS"]).read_text().splitlines()
    return sum(1 for line in lines if json.loads(line)["id"] == task_id)


@app.task(bind=True)
def picky(self: Any, what: str, *, mended: bool = False) -> str:
    """Fails, unless it is `mended`. With `what="redrive"` it succeeds at its second run."""
    note(self.request.id, what=what, mended=mended)
    if not mended and not (what == "redrive" and runs_of(self.request.id) > 1):
        message = f"no {what}"
        raise ValueError(message)
    return what


def decide(letter: Letter) -> LetterDecision | None:
    """Decide as the task's first argument says."""
    note(f"handler-{letter.task_id}", args=letter.args, reason=letter.reason, handled=letter.handled, task=letter.task)
    what = "unreadable" if letter.args is None else letter.args[0]
    if what == "fail":
        message = "the handler fails"
        raise RuntimeError(message)
    if what == "astray":
        return letter.redrive(queue="celery.pidbox")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    decisions = {
        "redrive": letter.redrive,
        "edit": lambda: letter.redrive(kwargs={"mended": True}),
        "archive": letter.archive,
        "discard": letter.discard,
        "park": letter.park,
        "unreadable": letter.discard,
    }
    return decisions[what]() if what in decisions else None


app.redelivery.dead_letter_handler("celery")(decide)
