"""The tests' app on RabbitMQ, whose worker dies at a named step where it is told to (`tests.chaos.rabbit.boundary`)."""

from __future__ import annotations

import os

from tests.chaos.rabbit import boundary
from tests.shop import app

__all__ = ["app"]

if "CHAOS_KILLS" in os.environ:
    boundary.install()
