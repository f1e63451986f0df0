"""An operator's commands in a run: each is started to be killed in its main steps, and the next one does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from redelivery.middleware.brokers.redis.keys import SEPARATOR
from tests.faults.chaos.run.turns import TIMEOUT

if TYPE_CHECKING:
    import random

    from tests.faults.chaos.plans.plan import Plan
    from tests.faults.chaos.processes.fleet import Fleet

__all__ = ["Commands"]

#: How many run at a time; two of one kind share its dead letters.
SLOTS = ("command-0", "command-1")
#: The roles of commands on dead letters.
LETTERS = {
    "redrive": ["redrive", "--limit", "10"],
    "purge": ["purge", "--limit", "2", "--yes"],
    "move": ["move", "--limit", "2", "--to", "DLQ.spare", "--create"],
    "archivist": ["export"],
}


class Commands:
    """Keeps commands running at boundaries that need more hits."""

    ROLES: tuple[str, ...] = (*LETTERS, "cancel", "reschedule", "exporter", "inventory")

    def __init__(self, fleet: Fleet, plan: Plan, chance: random.Random) -> None:
        self._fleet, self._plan, self._chance = fleet, plan, chance

    def turn(self) -> None:
        """Start the most needed command in each free slot; a command that takes too long is killed wherever it is."""
        for slot in SLOTS:
            running = self._fleet.alive(slot)
            if running is None:
                self._start(slot)
            elif running.age > TIMEOUT:
                self._fleet.slay(running, "at_random")

    def are_running(self) -> bool:
        """Whether any command still runs."""
        return any(self._fleet.alive(slot) is not None for slot in SLOTS)

    def _start(self, slot: str) -> None:
        left = [self._plan.left(role) for role in self.ROLES]
        if not any(left):
            return
        role = self._chance.choices(self.ROLES, left)[0]
        words = self._words(role)
        if words is not None:
            order = self._plan.next(role)
            if role == "exporter" and order is not None and order.boundary.startswith("lead"):
                words += ["--every", "1s"]  # one that goes on asks for the lead
            self._fleet.start(role, ["redelivery", *words], order, slot=slot)

    def _words(self, role: str) -> list[str] | None:
        """The command line, or None if the command would find nothing to do."""
        if role in {"exporter", "inventory"}:
            return self._export(role)
        client = self._fleet.client
        try:
            if role in LETTERS:
                return self._about_letters(role) if client.llen("DLQ.celery") else None
            ids = client.zrange("redelivery:delayed:tasks", 0, 0)
        except RedisError:
            return None
        later = ["--in", "1s"] if role == "reschedule" else []
        return ["delayed", role, ids[0].decode().split(SEPARATOR)[0], *later] if ids else None

    def _export(self, role: str) -> list[str]:
        noun = "outcomes" if role == "exporter" else role
        return [noun, "export", "--to", str(self._fleet.folder / noun), "--format", "jsonl"]

    def _about_letters(self, role: str) -> list[str]:
        verb, *more = LETTERS[role]
        if role == "archivist":
            return ["dlq", verb, "DLQ.celery", "--to", str(self._fleet.folder / "letters"), *more]
        if role == "purge":
            more += ["--archive", str(self._fleet.archive)]
        return ["dlq", verb, "DLQ.celery", "--all", "--yes", *more]
