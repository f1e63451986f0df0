"""The app of the tests of clocks: each run notes the local time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


@app.task(bind=True)
def ok(self: Any) -> None:
    note(self.request.id, now=datetime.now(UTC).timestamp())


@app.task(bind=True)
def fails(self: Any, times: int) -> None:
    note(self.request.id)
    if self.request.retries < times:
        message = "no"
        raise RuntimeError(message)


@app.task(bind=True)
def retries(self: Any, how: str, seconds: float) -> None:
    """Asks once for a retry of the same message, or with other arguments: then Celery publishes a new message."""
    note(self.request.id)
    if how == "same":
        if not self.request.retries:
            raise self.retry(countdown=seconds)
    elif how == "countdown":
        raise self.retry(args=("done", seconds), countdown=seconds)
    elif how == "eta":
        raise self.retry(args=("done", seconds), eta=datetime.now(UTC) + timedelta(seconds=seconds))
