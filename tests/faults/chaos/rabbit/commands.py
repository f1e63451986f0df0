"""An operator's commands on RabbitMQ: as on Redis, and the import of messages that the broker itself dead-lettered."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from tests.faults.chaos.rabbit.fleet import DIED, RabbitFleet
from tests.faults.chaos.run.commands import LETTERS, Commands

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.faults.chaos.plans.plan import Plan

__all__ = ["RabbitCommands"]

#: Seconds for which a task is published to wait, and from when to when it is sure to wait in the delay store.
COUNTDOWN, FROM, TO = 20, 2.0, 12.0


class RabbitCommands(Commands):
    """Keeps commands running at boundaries that need more hits; `later` publishes a task with so long a delay."""

    ROLES = (*LETTERS, "importer", "cancel", "reschedule", "exporter", "inventory")

    def __init__(self, fleet: RabbitFleet, plan: Plan, chance: random.Random, later: Callable[[float], str]) -> None:
        super().__init__(fleet, plan, chance)
        self._rabbit, self._later = fleet, later
        self._waiting: list[tuple[float, str]] = []

    def turn(self) -> None:
        """As on Redis; some tasks are kept waiting for the commands that cancel and reschedule."""
        self._waiting = [each for each in self._waiting if time.monotonic() < each[0] + TO]
        if self._plan.lacks("cancel:", "reschedule:") and len(self._waiting) < 3:
            with suppress(OperationalError, OSError):
                self._waiting.append((time.monotonic(), self._later(COUNTDOWN)))
        super().turn()

    def _words(self, role: str) -> list[str] | None:
        if role in {"cancel", "reschedule"}:
            return self._about_waiting(role)
        if role == "importer":
            return ["dlq", "import", DIED, "--limit", "3"] if self._rabbit.depth(DIED) else None
        if role in LETTERS:
            return self._about_letters(role) if self._rabbit.depth("DLQ.celery") else None
        return self._export(role)

    def _about_waiting(self, role: str) -> list[str] | None:
        there = [each for each in self._waiting if time.monotonic() > each[0] + FROM]
        if not there:
            return None
        self._waiting.remove(there[0])
        return ["delayed", role, there[0][1], *(["--in", "1s"] if role == "reschedule" else [])]
