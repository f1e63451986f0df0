"""The tests' app with a dead-letter handler and tracing."""

from __future__ import annotations

from tests.support.apps import letter_shop, traced_shop

__all__ = ["app"]

app = traced_shop.app
assert app is letter_shop.app
