"""For a worker (`-I tests.support.stops.counted_pipes`): counts the changes of its poller for pipes to children."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_ready, worker_shutdown

from tests.support.notes import note

asked: list[int] = []


@worker_ready.connect
def ready(sender: Any, **_: Any) -> None:
    poller, pipes = sender.hub.poller, sender.pool._pool._all_inqueues

    def counted(ask: Any) -> Any:
        def method(fd: int, *args: Any) -> Any:
            asked.extend([fd] if fd in pipes else [])
            return ask(fd, *args)

        return method

    poller.register, poller.unregister = counted(poller.register), counted(poller.unregister)


@worker_shutdown.connect
def ended(**_: Any) -> None:
    note("asked", asked=len(asked))
