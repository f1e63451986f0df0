"""Tasks of celery-batches, which asks for Celery 5.6 at most: run by `./dev older`."""

from __future__ import annotations

from typing import Any

from celery_batches import Batches

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


@app.task(base=Batches, flush_every=2, flush_interval=0.2)
def works(requests: list[Any]) -> None:
    """Stores a result for each message."""
    for request in requests:
        note(request.id, batch=len(requests))
        app.backend.mark_as_done(request.id, len(requests), request=request)


@app.task(base=Batches, flush_every=2, flush_interval=0.2)
def breaks(requests: list[Any]) -> None:
    for request in requests:
        note(request.id, batch=len(requests))
    message = "the batch failed"
    raise RuntimeError(message)
