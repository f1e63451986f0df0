"""The tests' app. It gets a second stop signal while Celery's handler of the first iterates over its signal receivers."""

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
    """The list of receivers. Its first iteration sends the signal, and Python calls the handler before the next line."""

    is_handed_over = False

    def __iter__(self) -> Iterator[Any]:
        if not self.is_handed_over:
            self.is_handed_over = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().__iter__()


@worker_shutting_down.connect
def hears(**_: Any) -> None:
    """A hook, so that there is a receiver on each pool."""


@worker_ready.connect
def wait_for_the_first(**_: Any) -> None:
    """Install the list when the worker is ready, so that only the stop iterates over it."""
    worker_shutting_down.receivers = Impatient(worker_shutting_down.receivers)
