"""The runner of operations: carries out what operators have begun (`redelivery ops list`), in the process that leads.

It is a duty of every worker, of `redelivery dispatcher` and of the web page. One of them leads, by a lease on the broker, while
there are open operations. If the leader dies, another process leads within some seconds, claims its operations, and continues them.
Two leaders at once do no harm: an operation runs under one token, and the broker refuses every other token.

Several operations run at once, each in its own thread. Operations on one dead-letter queue run one after another, the oldest first:
two at once would skip each other's dead letters.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from redelivery.middleware.brokers.errors import BROKER_ERRORS, EXPECTED_ERRORS
from redelivery.middleware.logs import log

from ..operations.runs.execution import Execution
from ..operations.runs.operation import Kind, Operation, State, is_kept, store_of
from .duty import TIMEOUT, Duty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redelivery.middleware.runtime import Runtime

#: Seconds between two looks of the leader, and of the others; seconds that the lead lasts.
EVERY, STANDING_BY, LEAD = 1.0, 2.0, 5.0
#: The most operations that run at once.
LIMIT = 4


class OperationRunner(Duty):
    """Looks for operations, and carries them out while it leads."""

    title = "operations"
    line_if_unanswered = "warning", "operations.waiting"
    line_if_failed = "error", "operations.failed"
    begins_at_once = True

    def __init__(self, runtime: Runtime, *, standing_by: float = STANDING_BY) -> None:
        """`standing_by`: seconds between two looks of a runner that does not lead, without a `wake`."""
        super().__init__(standing_by)
        self._standing_by = standing_by
        self._runtime = runtime
        self._store = store_of(runtime.transport)
        self._token = uuid.uuid4().hex
        self._leads = False
        self._running: dict[str, tuple[Operation, threading.Thread]] = {}

    def leads(self) -> bool:
        """Whether this process leads, which it can only while there are open operations."""
        led, self._leads = self._leads, self._store.has_unended() and self._store.lead(self._token, LEAD)
        if self._leads and not led:
            log.info("operations.leads")
        elif led and not self._leads:
            self._store.resign(self._token)
        self._every = EVERY if self._leads else self._standing_by
        return self._leads

    def unanswered(self, exc: Exception) -> None:
        """Log it; the next look decides again who leads."""
        self._leads = False
        super().unanswered(exc)

    def stop(self, seconds: float = TIMEOUT) -> None:
        """End, and give the lead up; another process continues the operations."""
        until = time.monotonic() + seconds
        super().stop(seconds)
        for _, thread in list(self._running.values()):
            thread.join(max(until - time.monotonic(), 0))
        if self._leads:
            with suppress(*BROKER_ERRORS):
                self._store.resign(self._token)
        self._leads = False

    def step(self) -> None:
        """Begin the operations that can run now. Raises the broker's errors."""
        self._running = {name: each for name, each in self._running.items() if each[1].is_alive()}
        busy = {_place(operation) for operation, _ in self._running.values()}
        for stored in self._store.unended():
            operation = Operation.of(stored)
            if operation.id in self._running or operation.state is State.PAUSED:
                continue
            if operation.has_ended:  # its record is unreadable, or was put back into the list of open ones
                self._close(operation, stored.state)
            elif len(self._running) < LIMIT and _place(operation) not in busy:
                busy.add(_place(operation))
                self._begin(operation)

    def _begin(self, operation: Operation) -> None:
        name = f"redelivery-operation-{operation.id[:8]}"
        thread = threading.Thread(target=self._carry_out, args=(operation.id,), name=name, daemon=True)
        self._running[operation.id] = operation, thread
        thread.start()

    def _carry_out(self, operation_id: str) -> None:
        try:
            Execution(self._runtime, self._store, operation_id, self._stopped.is_set).run()
        except BROKER_ERRORS as exc:
            log.warning("operations.waiting", operation=operation_id, error=str(exc))
        except Exception:  # noqa: BLE001 - the others go on
            log.exception("operations.failed", operation=operation_id)

    def _close(self, operation: Operation, state: str) -> None:
        log.error("operation.unreadable", operation=operation.id, why=operation.message)
        self._store.turn(operation.id, operation.state, states={state}, message=operation.message, has_ended=True)


@contextmanager
def carried_out(runtime: Runtime) -> Iterator[None]:
    """Carry out operations during the block, if the broker keeps them and answers at the beginning."""
    try:
        runner = OperationRunner(runtime) if is_kept(runtime.transport) else None
    except EXPECTED_ERRORS as exc:
        log.warning("operations.waiting", error=str(exc))
        runner = None
    if runner is None:
        yield
        return
    runner.start()
    try:
        yield
    finally:
        runner.stop()


def _place(operation: Operation) -> tuple[bool, str]:
    """Where an operation takes messages from. Operations of one place run one after another."""
    return operation.kind is Kind.CANCEL, operation.queue
