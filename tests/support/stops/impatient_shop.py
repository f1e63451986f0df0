"""The tests' app, told to stop a second time while Celery's handler of the first signal looks through the receivers of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from celery.signals import worker_ready, worker_shutting_down

from tests.support.shop import app

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["app"]


class Impatient(list[Any]):
    """The receivers: the signal comes when they are first looked through; Python calls its handler before the next line."""

    is_told = False

    def __iter__(self) -> Iterator[Any]:
        if not self.is_told:
            self.is_told = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().__iter__()


@worker_shutting_down.connect
def hears(**_: Any) -> None:
    """A hook of the application's: somebody is told, on each pool."""


@worker_ready.connect
def wait_for_the_first(**_: Any) -> None:
    """From now on nobody else looks through them."""
    worker_shutting_down.receivers = Impatient(worker_shutting_down.receivers)
