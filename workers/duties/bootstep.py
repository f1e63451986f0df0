"""The bootstep of a worker's duties: its lease, the recovery of dead workers, the dispatcher, the bounds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from redelivery.middleware.brokers import kind_of

from ..brokers.broker import broker_of
from ..brokers.redis.transport import redis_of
from .bounds.log_bounds import LogKeeper
from .bounds.queue_bounds import QueueKeeper
from .bounds.retention import Retention
from .dispatcher import Dispatcher
from .duty import TIMEOUT
from .exporter import Exporter
from .lease import Lease
from .operation_runner import OperationRunner
from .recoverer import Recoverer
from .watch.depths import Depths
from .watch.letter_watch import LetterWatch
from .watch.rabbitmq import AmqpLetterWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery.worker.consumer import Consumer

    from redelivery.middleware.brokers.redis.leases import Renewal
    from redelivery.middleware.runtime import Runtime

    from .duty import Duty

#: Seconds between two looks of a duty that does not lead. Without a leader, the next renewal of the lease wakes it sooner.
STANDING_BY = 30.0
#: Seconds between the first steps of two duties, which can share a connection if they step at different times.
OFFSET = 0.03
#: The lease's part of the seconds that all duties have to end (`TIMEOUT`).
LEASE = 1.0


class Duties(bootsteps.StartStopStep):
    """Begins when the consumer has connected for the first time, and ends when the pool has stopped."""

    requires = ("redelivery.middleware.worker.bootstep:Ingress",)
    label = "redelivery duties"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._duties: tuple[Duty, ...] = ()

    def start(self, consumer: Consumer) -> None:
        """Begin the duties; after a lost connection they still run."""
        if not self._duties:
            self._duties = duties_of(consumer.app.redelivery)
            for number, duty in enumerate(self._duties):
                duty.start(number * OFFSET)
            _report_depths(consumer.app.redelivery, self._duties)

    def stop(self, consumer: Consumer) -> None:
        """Do nothing: tasks may still run, and need the lease."""

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """End all duties together, and then the lease under which the worker holds its messages."""
        end_together([duty for duty in self._duties if not isinstance(duty, Lease)], TIMEOUT - LEASE)
        end_together([duty for duty in self._duties if isinstance(duty, Lease)], LEASE)
        self._duties = ()


def _report_depths(runtime: Runtime, duties: Sequence[Duty]) -> None:
    """Let OpenTelemetry read the queues' depths, from the worker that watches the dead letters."""
    telemetry = runtime.telemetry
    if telemetry is None:
        return
    for watch in duties:
        if isinstance(watch, LetterWatch):
            telemetry.watch_depths(Depths(runtime, watch).look)


def end_together(duties: Sequence[Duty], seconds: float) -> None:
    """End each duty after its current step; wait for all, `seconds` at most."""
    for duty in duties:
        duty.ask_to_stop()
    until = time.monotonic() + seconds
    for duty in duties:
        duty.stop(until - time.monotonic())


def duties_of(runtime: Runtime) -> tuple[Duty, ...]:
    """The duties of a worker, in the order in which they begin; in `mode="observe"` only those of the outcome log.

    Without leases (RabbitMQ and others) only the watch over the dead letters and the export remain.
    """
    settings = runtime.settings
    exporters: tuple[Duty, ...] = ()
    if settings.outcome_export is not None and kind_of(runtime.app) != "generic":
        broker, every = broker_of(runtime.transport), settings.outcome_export_every
        exporters = (Exporter(broker.outcomes, settings.outcome_export, audit=broker.audit, every=every),)
    if not runtime.has_leases:
        watches = (AmqpLetterWatch(runtime),) if runtime.enforces and kind_of(runtime.app) == "amqp" else ()
        return (*watches, *exporters)
    redis, max_bytes = redis_of(runtime), settings.outcome_log_max_bytes
    if not runtime.enforces:
        return LogKeeper(redis, max_bytes), *exporters
    recoverer, runner = Recoverer(runtime), OperationRunner(runtime, standing_by=STANDING_BY)
    dispatcher = Dispatcher(redis, standing_by=STANDING_BY) if settings.dispatcher else None

    def on_renewed(renewal: Renewal) -> None:
        if renewal.recovering:
            recoverer.wake()
        if renewal.no_dispatcher and dispatcher is not None:
            dispatcher.wake()
        if renewal.no_operator:
            runner.wake()

    dispatchers = () if dispatcher is None else (dispatcher,)
    lease = Lease(runtime, on_renewed)
    keepers = QueueKeeper(runtime), Retention(runtime), LetterWatch(runtime), runner
    return lease, recoverer, *dispatchers, *keepers, LogKeeper(redis, max_bytes, lambda: lease.watches), *exporters
