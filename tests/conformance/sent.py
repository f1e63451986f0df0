"""The tasks that the tests of one broker have sent to their common worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.running import until

if TYPE_CHECKING:
    from redelivery.middleware.messages.events import Event
    from tests.conformance.brokers import Place
    from tests.support.running import Shop

__all__ = ["Sent", "letter_of"]


@dataclass
class Sent:
    """A shop, and the id and time of each publication, by the name that a test gives it."""

    place: Place
    shop: Shop
    ids: dict[str, str] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)

    def send(self, name: str, task: str, *args: Any, **options: Any) -> None:
        """Publish one task."""
        self.at[name] = time.time()
        self.ids[name] = self.shop.send(task, *args, **options)

    def ended(self, name: str, outcome: str) -> Event:
        """Wait until the task has this outcome; returns the event."""
        return self.shop.ended(self.ids[name], outcome, 120)

    def outcomes(self, name: str) -> list[str]:
        """The task's outcomes so far, in order."""
        return self.shop.outcomes_of(self.ids[name])

    def runs(self, name: str) -> list[dict[str, Any]]:
        """The task's runs so far."""
        return self.shop.runs(self.ids[name])

    def letter(self, name: str, queue: str = "DLQ.celery") -> dict[str, Any]:
        """The task's dead letter, as soon as it is in this queue."""
        return letter_of(self.shop, self.ids[name], queue)


def letter_of(shop: Shop, task_id: str, queue: str = "DLQ.celery") -> dict[str, Any]:
    """The dead letter of a task, as soon as it is in this queue."""

    def found() -> dict[str, Any] | None:
        return next((each for each in shop.letters(queue) if each["headers"].get("id") == task_id), None)

    letter: dict[str, Any] = until(found, what=f"a letter of {task_id} in {queue}")
    return letter
