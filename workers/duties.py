"""The duties that a worker does beside its tasks: its lease, the recovery of dead workers, the dispatcher, the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from redelivery.workers.dispatcher import Dispatcher
from redelivery.workers.lease import Lease
from redelivery.workers.log_keeper import LogKeeper
from redelivery.workers.queue_keeper import QueueKeeper
from redelivery.workers.recoverer import Recoverer
from redelivery.workers.retention import Retention

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

__all__ = ["Duties"]


class Duties(bootsteps.StartStopStep):
    """The bootstep: begins when the consumer has connected for the first time, ends when the pool has stopped."""

    requires = ("redelivery.middleware.ingress:Ingress",)
    label = "redelivery duties"

    def __init__(self, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.lease: Lease | None = None
        self.recoverer: Recoverer | None = None
        self.dispatcher: Dispatcher | None = None
        self.log_keeper: LogKeeper | None = None
        self.queue_keeper: QueueKeeper | None = None
        self.retention: Retention | None = None

    def start(self, consumer: Consumer) -> None:
        """Begin; after a lost connection they are running already."""
        install = consumer.app.redelivery
        if self.log_keeper is None:
            self.log_keeper = LogKeeper(install.transport, install.settings.outcome_log_max_bytes)
            self.log_keeper.start()
        if not install.enforces:
            return
        if self.recoverer is None:
            self.recoverer = Recoverer(install)
            self.recoverer.start()
        if self.lease is None:
            self.lease = Lease(install, self.recoverer.wake)
            self.lease.start()
        if self.dispatcher is None and install.settings.dispatcher:
            self.dispatcher = Dispatcher(install.transport)
            self.dispatcher.start()
        if self.queue_keeper is None:
            self.queue_keeper = QueueKeeper(install)
            self.queue_keeper.start()
        if self.retention is None:
            self.retention = Retention(install)
            self.retention.start()

    def stop(self, consumer: Consumer) -> None:
        """The consumer has stopped; tasks may be running, so the lease goes on."""

    def shutdown(self, consumer: Consumer) -> None:  # noqa: ARG002 - Celery's signature
        """The pool has stopped."""
        for duty in (self.log_keeper, self.retention, self.queue_keeper, self.dispatcher, self.recoverer, self.lease):
            if duty is not None:
                duty.stop()
        self.lease = self.recoverer = self.dispatcher = self.log_keeper = self.queue_keeper = self.retention = None
