"""The figures: messages sent and delivered, outcomes and reasons, run times and waits, and the depths of queues.

Counters are kept here and read when the SDK collects, because an SDK's own counter takes several microseconds for each task. Run
times and waits are passed to the SDK together, to save time: when it collects, or when `MAX_PENDING` wait. A forked process begins
at 0.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Observation, get_meter

from redelivery.lazily import cached_property

from ..messages.events import Outcome
from . import forked
from .series import MAX_SERIES, OTHER, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from celery import Celery
    from opentelemetry.metrics import CallbackOptions, Histogram

    from ..messages.events import Event
    from .series import Labels

#: Seconds: the bounds in OpenTelemetry's conventions.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
#: The most measurements that wait here; the SDK takes about 8 µs for each.
MAX_PENDING: Final = 256
#: The conventions' value for an error that is not named.
UNNAMED: Final = "_OTHER"
#: Every depth that is reported: its unit and its description.
DEPTHS: Final[Mapping[str, tuple[str, str]]] = {
    "redelivery.queue.messages": ("{message}", "Messages that wait in a queue."),
    "redelivery.delayed.messages": ("{message}", "Messages in the delay store, by the queue they go to."),
    "redelivery.dead_letters": ("{message}", "Dead letters in a dead-letter queue."),
    "redelivery.held.messages": ("{message}", "Messages that workers hold."),
    "redelivery.overdue": ("s", "For how long the first message that is due still waits in the delay store."),
}


class Tally:
    """A counter for each set of labels."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._counts: dict[Labels, int] = {}

    def count(self, labels: Labels) -> None:
        """Add 1."""
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0) + 1

    def reset(self) -> None:
        """Begin at 0 in a forked process: the parent reports its own counts."""
        self._lock, self._counts = threading.Lock(), {}

    def observed(self, more: Mapping[str, str]) -> Callable[[CallbackOptions], Iterator[Observation]]:
        """The callback of an observable counter; `more` are attributes of all series. An empty label is left out."""

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                counts = list(self._counts.items())
            for labels, count in counts:
                named = {name: label for name, label in zip(self._names, labels, strict=True) if label}
                yield Observation(count, {**more, **named})

        return observe


class Figures:
    """The figures of one process of an app. `system` is the broker's kind."""

    def __init__(self, app: Celery, system: str) -> None:
        self._app, self._meter = app, get_meter("redelivery", version("redelivery"))
        self._system: Mapping[str, str] = {"messaging.system": system}
        #: Measurements for the SDK: the histogram, the value and the attributes.
        self._measured: deque[tuple[Histogram, float, Mapping[str, str]]] = deque()
        self._queues = Series({""})
        queue, task = "messaging.destination.name", "celery.task_name"
        self._sent, self._delivered = Tally(queue), Tally(queue)
        self._outcomes = Tally(queue, task, "redelivery.outcome", "redelivery.reason")
        self._counter("messaging.client.sent.messages", "Messages that were sent to the broker.", self._sent, "publish")
        self._counter("messaging.client.consumed.messages", "Messages that were handed to the pool.", self._delivered, "receive")
        self._counter("redelivery.outcomes", "How deliveries ended, and why.", self._outcomes)
        self._run = self._histogram("messaging.process.duration", "For how long attempts ran.")
        self._wait = self._histogram("redelivery.wait.duration", "For how long messages waited, from when they were due.")
        #: An event's queue, task, outcome, reason and exception → its labels, and the attributes of its measurements.
        self._known: dict[tuple[str, ...], tuple[Labels, Mapping[str, str]]] = {}
        _reset_in_children(self)

    @cached_property
    def _ends(self) -> Series:
        return Series(self._app.tasks)  # cached: a producer records no ends, and need not load its tasks

    @cached_property
    def _runs(self) -> Series:
        return Series(self._app.tasks)

    def _counter(self, name: str, description: str, tally: Tally, operation: str = "") -> None:
        more = {**self._system, "messaging.operation.name": operation} if operation else self._system
        self._meter.create_observable_counter(name, [self._pass_on, tally.observed(more)], "{message}", description)

    def _histogram(self, name: str, description: str) -> Histogram:
        return self._meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS)

    def reset(self) -> None:
        """Forget the parent's counts and measurements in a forked process."""
        for tally in (self._sent, self._delivered, self._outcomes):
            tally.reset()
        self._measured.clear()

    def sent(self, queue: str) -> None:
        """Count a message published to this queue."""
        self._sent.count(self._queues.of(queue, "")[:1])

    def delivered(self, queue: str) -> None:
        """Count a message of this queue that is handed to the pool."""
        self._delivered.count(self._queues.of(queue, "")[:1])

    def ended(self, event: Event) -> None:
        """Count and measure an event that the broker has recorded."""
        key = (event.queue, event.task, event.outcome, event.reason, event.exception)
        known = self._known.get(key)
        labels, attributes = self._labels_of(key) if known is None else known
        self._outcomes.count(labels)
        if event.run_ms is not None:
            self._measured.append((self._run, event.run_ms / 1000, attributes))
        if event.waited_ms is not None:
            self._measured.append((self._wait, event.waited_ms / 1000, attributes))
        if len(self._measured) >= MAX_PENDING:
            self._pass_on()

    def _labels_of(self, key: tuple[str, ...]) -> tuple[Labels, Mapping[str, str]]:
        queue, task, outcome, reason, exception = key
        ends = self._ends.of(queue, task, outcome, reason)
        place, name, failed = self._runs.of(queue, task, "" if outcome == Outcome.SUCCEEDED else exception or reason)
        if place == OTHER and failed:  # exceptions may have any name
            failed = UNNAMED
        run = {"messaging.destination.name": place, "celery.task_name": name, "messaging.operation.name": "process"}
        found = ends, {**self._system, **run, **({"error.type": failed} if failed else {})}
        if place != OTHER and len(self._known) < MAX_SERIES:
            self._known[key] = found
        return found

    def _pass_on(self, _: object = None) -> tuple[Observation, ...]:
        """Pass each measurement to the SDK once. The SDK calls this before it collects, from any thread."""
        for _ in range(len(self._measured)):
            try:
                histogram, value, attributes = self._measured.popleft()
            except IndexError:  # another thread took the last one
                break
            histogram.record(value, attributes)
        return ()

    def watch_depths(self, look: Callable[[], Iterable[tuple[str, float, Mapping[str, str]]]]) -> None:
        """Report depths. The SDK calls `look` for each gauge when it collects; it is empty if another process reports.

        Children that are forked later have the same gauges, and do not call `look`.
        """
        pid = os.getpid()

        def observe(name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
            def observed(_: CallbackOptions) -> Iterator[Observation]:
                for found, value, labels in look() if os.getpid() == pid else ():
                    if found == name:
                        yield Observation(value, {**self._system, **labels})

            return observed

        for name, (unit, description) in DEPTHS.items():
            self._meter.create_observable_gauge(name, [observe(name)], unit, description)


def _reset_in_children(figures: Figures) -> None:
    reference: Any = weakref.ref(figures)

    def after_in_child() -> None:
        alive = reference()
        if alive is not None:
            forked.reset()
            alive.reset()

    os.register_at_fork(after_in_child=after_in_child)
