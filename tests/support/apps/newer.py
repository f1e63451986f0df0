"""The app of the tests of deaths in a future version: another header version, and one more field."""

from __future__ import annotations

from typing import Any

from redelivery.middleware.messages.envelope import Envelope
from tests.support.apps.deaths import app

__all__ = ["app"]

VERSION = 2
written = Envelope.to_header


def to_header(self: Envelope) -> dict[str, Any]:
    """The header of this version, with one more field."""
    header = written(self)
    return {**header, "version": VERSION, "lane": {"writes": (header.get("lane") or {"writes": 0})["writes"] + 1}}


Envelope.to_header = to_header  # type: ignore[method-assign]
