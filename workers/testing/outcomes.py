"""`outcomes`: the recorded events of a test's tasks, and a wait for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.middleware.messages.events import TERMINAL, Event, Outcome, entries

from ..brokers.broker import broker_of
from ..brokers.redis.transport import redis_of
from .worker import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .worker import RunningWorker


class Outcomes:
    """The outcome log of a test: iterate it for all events so far, in order."""

    def __init__(self, worker: RunningWorker) -> None:
        self._worker = worker

    def __iter__(self) -> Iterator[Event]:
        transport = redis_of(self._worker.runtime)
        raw: Any = transport.client.xrange(transport.keys.outcomes)
        return iter(entries(raw))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr([(event.task, str(event.outcome)) for event in self])

    def of(self, task_id: Any) -> list[Event]:
        """The events of one task, in order; `task_id` is its id, or the result of `delay`."""
        return [event for event in self if event.task_id == str(task_id)]

    def names_of(self, task_id: Any) -> list[str]:
        """The outcomes of one task by name, in order."""
        return [str(event.outcome) for event in self.of(task_id)]

    def wait_for(self, task_id: Any, outcome: Outcome | str | None = None, timeout: float | None = None) -> Event:
        """Wait until the task's life has ended, or has had this outcome; return that event.

        After a redrive it waits for the new life. `timeout` is in seconds (None: `redelivery_timeout`). Raises `TimeoutError`, with
        the outcomes so far and the remaining wait in the delay store; `ValueError` for an unknown outcome.
        """
        wanted = TERMINAL if outcome is None else frozenset({Outcome(outcome)})
        seconds = self._worker.timeout if timeout is None else timeout
        found: Event = until(lambda: self._last(task_id, wanted), seconds, lambda: self._so_far(task_id, outcome))
        return found

    def _last(self, task_id: Any, wanted: frozenset[Outcome]) -> Event | None:
        events = self.of(task_id)
        newest = max((event.generation for event in events), default=0)
        return next((event for event in reversed(events) if event.generation == newest and event.outcome in wanted), None)

    def _so_far(self, task_id: Any, outcome: Outcome | str | None) -> str:
        names = self.names_of(task_id)
        wanted = "has not ended" if outcome is None else f"was not {Outcome(outcome)}"
        text = f"{task_id} {wanted}; so far: {', '.join(names) if names else 'nothing: was it published by this app?'}"
        transport = redis_of(self._worker.runtime)
        waiting = broker_of(self._worker.runtime.transport).delayed.of_task(str(task_id))
        waits = [each.due_ms - transport.now_ms() for each in waiting]
        return f"{text}; it waits in the delay store: advance_time({max(min(waits), 0) / 1000:.1f})" if waits else text
