"""What a worker claims from the broker when it connects, and gives back when it stops."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery.worker import state

from redelivery.errors import BrokerError

from ..logs import log
from ..transitions.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..ports import Deliveries, Held
    from ..runtime import Runtime

#: Seconds that a stopping worker waits for transitions that the broker has not answered.
DRAIN = 10.0
#: Two threads may notice a new connection at the same time.
_BEGINNING = threading.RLock()


@contextmanager
def connecting() -> Iterator[None]:
    """Turn a `BrokerError` into a `ConnectionError`, at which Celery's consumer connects again."""
    try:
        yield
    except BrokerError as exc:
        raise ConnectionError(str(exc)) from exc


def begin(runtime: Runtime, worker: str) -> None:
    """Claim an owner when a worker's consumer has connected; after a lost connection, keep what runs and give back the rest."""
    with _BEGINNING:
        runtime.worker = worker
        with connecting():
            transport = runtime.transport  # the first access makes it
            if not runtime.enforces:
                return
            if not runtime.holds_messages:
                runtime.hold(transport.claim_for(worker))
        owner = runtime.owner
        token, lease = owner.token, owner.lease
        if lease is None:
            return  # the broker itself delivers a dead worker's messages again
        if not lease.is_alive():
            lease.begin(token)
            return
    given_back, keep, suspects = _give_back(runtime, set())
    log.info("owner.reconnected", worker=worker, holds=len(keep), suspects=len(suspects), given_back=given_back)


def give_back_last(runtime: Runtime) -> None:
    """Give back, after a new connection, what the broker does not deliver again because its queue was deleted.

    Celery has dropped what had not begun. A pool without processes still runs what it was given.
    """
    held = list(runtime.owner.held.items())
    shares = runtime.shares_process
    _give_back(runtime, {tag for tag, each in held if each.request is None or (shares and each.request.was_handed_over())})


def _give_back(runtime: Runtime, keep: set[str]) -> tuple[int, set[str], list[Held]]:
    """Give back all but what runs and what to `keep`; return how many went back, what was kept, and the suspects."""
    owner = runtime.owner
    leaving = runtime.outbox.tags()  # their tasks have ended, and they leave as soon as the broker answers
    running, suspects = _running_and_suspects(owner)
    keep |= running
    keep |= {held.tag for held in suspects if held.request.is_with_strategy}  # their own strategy will run them
    suspects = [held for held in suspects if held.tag not in leaving | keep]
    _recover(runtime, suspects)
    return owner.release(keep | leaving | runtime.outbox.tags()), keep, suspects


def end(runtime: Runtime) -> None:
    """Wait for the broker's answers when the worker stops, then give back what has not run."""
    if not runtime.holds_messages:
        runtime.outbox.drain(DRAIN)
        return
    owner = runtime.owner
    lease = owner.lease
    if lease is None:
        _end_without_lease(runtime, owner)
        return
    if not runtime.outbox.drain(DRAIN):
        log.error("outbox.abandoned", waiting=len(runtime.outbox), why="the broker does not answer; the lease will end")
        return
    running, suspects = _running_and_suspects(owner)
    # A cold shutdown has broken these off after they had begun, or perhaps had.
    _recover(runtime, [each for each in suspects if state.should_terminate or each.request.time_start is not None])
    given_back = owner.release(keep=running | runtime.outbox.tags())
    if owner.held:
        why = "tasks were still running; the lease will end"
        log.warning("owner.stopped", worker=runtime.worker, running=len(owner.held), why=why)
    else:
        lease.part()
    log.info("owner.released", worker=runtime.worker, given_back=given_back)
    runtime.hold(None)


def _end_without_lease(runtime: Runtime, owner: Deliveries) -> None:
    """Give back what has not begun. When the connection closes, the broker delivers the rest again."""
    transport = runtime.transport
    running, suspects = _running_and_suspects(owner)
    given_back = owner.release(keep=running | {held.tag for held in suspects} | runtime.outbox.tags())
    is_done, session = runtime.outbox.drain(DRAIN), transport.session
    left = 0 if session is None else session.drain(DRAIN)
    if not is_done or left:
        waiting = len(runtime.outbox) + left
        log.error("outbox.abandoned", waiting=waiting, why="the broker does not answer; the messages are delivered again")
    log.info("owner.released", worker=runtime.worker, given_back=given_back)
    transport.close()
    runtime.hold(None)


def _recover(runtime: Runtime, suspects: list[Held]) -> None:
    """Give these back one by one, like a dead worker's messages: it is unknown whether they have begun."""
    owner = runtime.owner
    for held in suspects:
        recover(runtime, held, started=None, worker=runtime.worker, now_ms=owner.now_ms())
        owner.held.pop(held.tag, None)


def _running_and_suspects(owner: Deliveries) -> tuple[set[str], list[Held]]:
    """The tags of messages that run here, and the suspects: handed to the pool, not known to have begun.

    The newest comes first: each message goes back to the head of its queue, so that the oldest is taken first.
    """
    requests = [(held, held.request) for held in reversed(list(owner.held.values())) if held.request is not None]
    running = {held.tag for held, request in requests if request.is_running()}
    return running, [held for held, request in requests if held.tag not in running and request.was_handed_over()]
