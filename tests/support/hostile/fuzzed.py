"""The app of the fuzz test of incoming messages. Its task accepts any arguments, and notes the number of its message."""

from __future__ import annotations

from typing import Any

from tests.faults.fuzz.hostile_messages import MARK
from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]


@app.task(bind=True)
def take(self: Any, *_: Any, **__: Any) -> None:
    note(str(self.request.id)[:40], number=(self.request.headers or {}).get(MARK))
