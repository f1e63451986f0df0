"""A duty: repeated work of a worker in addition to its tasks, in its own native thread.

The thread is native, because a task on a solo pool blocks every timer of the event loop. If the broker does not answer, the next
step tries again; any other exception is a bug and is logged. A stop waits for the current step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar

from redelivery.errors import BrokerError
from redelivery.middleware.brokers.errors import BROKER_ERRORS, REDIS_ERRORS
from redelivery.middleware.logs import log

#: Seconds that a stop waits for current steps.
TIMEOUT = 5.0


class Duty(ABC):
    """Takes a step every `every` seconds, from `start` to `stop`. `title` names its thread."""

    title: ClassVar[str]
    #: Level and event of the log line if the broker did not answer a step, or refused it; and if a step failed otherwise.
    line_if_unanswered: ClassVar[tuple[str, str]]
    line_if_failed: ClassVar[tuple[str, str]]
    #: Whether the first step comes before the first wait.
    begins_at_once: ClassVar[bool] = False

    def __init__(self, every: float) -> None:
        self._every = every
        self._offset = 0.0
        self._stopped, self._woken = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, offset: float = 0.0) -> None:
        """Begin after `offset` seconds; a second call changes nothing."""
        if self._thread is None:
            self._offset = offset
            self._thread = threading.Thread(target=self._run, name=f"redelivery-{self.title}", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Take the next step now."""
        self._woken.set()

    def ask_to_stop(self) -> None:
        """End after the current step, but do not wait for it."""
        self._stopped.set()
        self.wake()

    def stop(self, seconds: float = TIMEOUT) -> None:
        """End after the current step, and wait for it, `seconds` at most."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join(max(seconds, 0))

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

    def rest(self) -> None:
        """Wait for the next step, `wake` or the end."""
        self._woken.wait(self._every)
        self._woken.clear()

    def _run(self) -> None:
        self._stopped.wait(self._offset)
        if not self.begins_at_once:
            self.rest()
        while not self._stopped.is_set():
            try:
                if self.leads():
                    self.step()
            except (BrokerError, *REDIS_ERRORS, *BROKER_ERRORS) as exc:
                self.unanswered(exc)
            except Exception as exc:  # noqa: BLE001 - the duty must go on
                self.failed(exc)
            self.rest()
