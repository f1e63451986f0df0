"""The tests' app on RabbitMQ. Its worker dies at a step on request (`tests.faults.chaos.rabbit.boundary`)."""

from __future__ import annotations

import os

from tests.faults.chaos.rabbit import boundary
from tests.support.shop import app

__all__ = ["app"]

if "CHAOS_KILLS" in os.environ:
    boundary.install()
