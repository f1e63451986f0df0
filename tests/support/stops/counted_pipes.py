"""For a worker (`-I tests.support.stops.counted_pipes`): counts how often its loop is asked about the pipes to its children."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_ready, worker_shutdown

from tests.support.notes import note

asked: list[int] = []


@worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    """Count from here on."""
    poller, pipes = sender.hub.poller, sender.pool._pool._all_inqueues

    def counted(ask: Any) -> Any:
        def method(fd: int, *args: Any) -> Any:
            asked.extend([fd] if fd in pipes else [])
            return ask(fd, *args)

        return method

    poller.register, poller.unregister = counted(poller.register), counted(poller.unregister)


@worker_shutdown.connect
def ended(**_: Any) -> None:
    """Note the count."""
    note("asked", asked=len(asked))
