"""The tests' app with tasks whose own `Strategy` gathers messages, runs them together, and acknowledges them itself.

It works like celery-batches 0.11, which cannot be installed with Celery 5.7.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from celery import Task
from celery.utils.imports import symbol_by_name
from celery.worker.request import create_request_cls

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["Batches", "app"]


class Simple:
    """A message, as a batch's task sees it."""

    def __init__(self, request: Any) -> None:
        self.id, self.reply_to, self.correlation_id = request.id, request.reply_to, request.correlation_id
        self.ignore_result, self.chord, self.group, self.root_id = False, None, None, request.root_id


class Batches(Task):
    """A task that is given a list of messages."""

    abstract = True
    typing = False
    flush_every = 10
    flush_interval = 30.0

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # noqa: N802 - Celery's name
        """Gather messages, and run them when there are enough, or after `flush_interval`."""
        kind = create_request_cls(
            symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
        )
        self.gathered: list[Any] = []
        consumer.timer.call_repeatedly(self.flush_interval, self.flush, (consumer.pool,))

        def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **_: Any) -> None:
            del body, callbacks
            known = {"body": message.body, "headers": message.headers, "decoded": False, "utc": True}
            who = {"app": app, "hostname": consumer.hostname, "eventer": consumer.event_dispatcher, "task": task}
            errors = consumer.connection_errors
            self.gathered.append(kind(message, on_ack=ack, on_reject=reject, connection_errors=errors, **who, **known))
            if len(self.gathered) >= self.flush_every:
                self.flush(consumer.pool)

        return handle

    def flush(self, pool: Any) -> None:
        """Run the gathered messages as one job. Acknowledge them when it ends, or when it is accepted (`acks_late=False`)."""
        batch, self.gathered = self.gathered, []
        if not batch:
            return

        def over(*_: Any) -> None:
            for request in batch:
                request.acknowledge()

        whens = {"callback" if self.acks_late else "accept_callback": over}
        pool.apply_async(run_batch, (self.name, [Simple(each) for each in batch]), **whens)


def run_batch(name: str, requests: list[Any]) -> Any:
    """Run a task for a list of messages; an exception of the task is logged and not raised."""
    try:
        return app.tasks[name](requests)
    except Exception:  # as celery-batches does
        logging.getLogger(__name__).exception("the batch failed")


def noted(requests: list[Any]) -> None:
    for request in requests:
        note(request.id, batch=len(requests))


@app.task(base=Batches, flush_every=2, flush_interval=0.2)
def works(requests: list[Any]) -> None:
    """Stores a result for each message, as celery-batches requires."""
    noted(requests)
    for request in requests:
        app.backend.mark_as_done(request.id, len(requests), request=request)


@app.task(base=Batches, flush_every=2, flush_interval=0.2)
def breaks(requests: list[Any]) -> None:
    noted(requests)
    message = "the batch failed"
    raise RuntimeError(message)


@app.task(base=Batches, flush_every=2, flush_interval=0.2, acks_late=False)
def breaks_early(requests: list[Any]) -> None:
    """Is acknowledged before it runs, and fails."""
    noted(requests)
    message = "the batch failed"
    raise RuntimeError(message)


@app.task(base=Batches, flush_every=1, flush_interval=0.2)
def kills(requests: list[Any]) -> None:
    noted(requests)
    os.killpg(os.getpgid(0), signal.SIGKILL)


@app.task(base=Batches, flush_every=1000, flush_interval=3600)
def gathers(requests: list[Any]) -> None:
    """Never runs: its batch is too large."""
    noted(requests)
