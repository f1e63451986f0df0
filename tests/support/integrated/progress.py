"""Tasks that report their progress with celery-progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_progress.backend import ProgressRecorder

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


@app.task(bind=True)
def counts(self: Any, gate: str, failures: int = 0) -> str:
    """Is half done until the file `gate` exists. Then it fails `failures` times."""
    note(self.request.id)
    ProgressRecorder(self).set_progress(1, 2, "half")
    while not Path(gate).exists():
        pass
    if self.request.retries < failures:
        message = "no"
        raise RuntimeError(message)
    return "done"


@app.task(bind=True)
def asks(self: Any, seconds: float) -> None:
    raise self.retry(countdown=seconds)
