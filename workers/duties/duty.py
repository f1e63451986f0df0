"""A duty: what a worker does beside its tasks, again and again, in a native thread of its own.

A native thread, because a task on a solo pool blocks every timer of the event loop. A duty goes on whatever fails: a broker that
does not answer is asked again at the next step, and any other exception is a bug and is logged. A stop waits for the current step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar

from redelivery.middleware.brokers.errors import REDIS_ERRORS
from redelivery.middleware.logs import log

#: How long a stop waits for the steps that are under way (seconds).
TIMEOUT = 5.0


class Duty(ABC):
    """Takes a step every so many seconds, from `start` to `stop`. `title` names its thread."""

    title: ClassVar[str]
    #: The log lines, each a level and an event: the broker did not answer a step, or refused it; the step failed otherwise.
    line_if_unanswered: ClassVar[tuple[str, str]]
    line_if_failed: ClassVar[tuple[str, str]]
    #: Whether the first step is taken at once, or after the first wait.
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
        """Do it once. Raises whatever the broker does."""

    def unanswered(self, exc: Exception) -> None:
        """The broker did not answer a step, or refused it."""
        level, event = self.line_if_unanswered
        getattr(log, level)(event, error=str(exc))

    def failed(self, exc: Exception) -> None:  # noqa: ARG002 - the log line has the exception that is being handled
        """A step failed otherwise; called while `exc` is being handled."""
        log.exception(self.line_if_failed[1])

    def leads(self) -> bool:
        """Whether this worker takes the step. Raises whatever the broker does."""
        return True

    def rest(self) -> None:
        """Wait for the next step, until it is woken or ends."""
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
            except REDIS_ERRORS as exc:
                self.unanswered(exc)
            except Exception as exc:  # noqa: BLE001 - the duty must go on
                self.failed(exc)
            self.rest()
