"""A duty: repeated work of a worker in addition to its tasks, in native threads (`scheduler`).

If the broker does not answer, the next step tries again; any other exception is a bug and is logged. A stop waits for the current
step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS, REDIS_ERRORS
from redelivery.middleware.logs import log

from .scheduler import scheduler

if TYPE_CHECKING:
    from .scheduler import Entry, Scheduler

#: Seconds that a stop waits for current steps.
TIMEOUT = 5.0


class Duty(ABC):
    """Takes a step every `every` seconds, from `start` to `stop`. `title` names its thread during a step."""

    title: ClassVar[str]
    #: Level and event of the log line if the broker did not answer a step, or refused it; and if a step failed otherwise.
    line_if_unanswered: ClassVar[tuple[str, str]]
    line_if_failed: ClassVar[tuple[str, str]]
    #: Whether the first step comes before the first wait.
    begins_at_once: ClassVar[bool] = False
    #: Whether its steps are so brief that the other duties of the process can wait for them.
    is_brief: ClassVar[bool] = False

    def __init__(self, every: float) -> None:
        self._every = every
        self._stopped = threading.Event()
        #: Its steps since `start`, and what takes them.
        self._entry: Entry | None = None
        self._scheduler: Scheduler | None = None

    def start(self, offset: float = 0.0) -> None:
        """Begin after `offset` seconds; a second call changes nothing."""
        if self._entry is None and not self._stopped.is_set():
            after = offset if self.begins_at_once else offset + self._every
            self._scheduler = scheduler()
            self._entry = self._scheduler.add(self._take_step, f"redelivery-{self.title}", after, is_brief=self.is_brief)

    def wake(self) -> None:
        """Take the next step now."""
        if (entry := self._own_entry()) is not None:
            scheduler().hurry(entry)

    def ask_to_stop(self) -> None:
        """End after the current step, but do not wait for it."""
        self._stopped.set()
        if (entry := self._own_entry()) is not None:
            scheduler().end(entry)

    def stop(self, seconds: float = TIMEOUT) -> None:
        """End after the current step, and wait for it, `seconds` at most."""
        self.ask_to_stop()
        if (entry := self._own_entry()) is not None:
            scheduler().await_end(entry, max(seconds, 0))

    def _own_entry(self) -> Entry | None:
        """Its steps, if they are taken in this process and not in its parent."""
        return self._entry if self._scheduler is scheduler() else None

    @abstractmethod
    def step(self) -> object:
        """Do the work once. Raises the broker's errors."""

    def unanswered(self, exc: Exception) -> None:
        """Log that the broker did not answer a step, or refused it."""
        level, event = self.line_if_unanswered
        getattr(log, level)(event, error=str(exc))

    def failed(self, exc: Exception) -> None:  # noqa: ARG002 - the log line has the exception that is being handled
        """Log that a step failed otherwise; called while `exc` is being handled."""
        log.exception(self.line_if_failed[1])

    def leads(self) -> bool:
        """Whether this worker takes the step. Raises the broker's errors."""
        return True

    def _take_step(self) -> float:
        """Take one step. Returns the seconds until the next."""
        try:
            if not self._stopped.is_set() and self.leads():
                self.step()
        except (*REDIS_ERRORS, *ANY_BROKER_ERRORS) as exc:
            self.unanswered(exc)
        except Exception as exc:  # noqa: BLE001 - the duty must go on
            self.failed(exc)
        return self._every
