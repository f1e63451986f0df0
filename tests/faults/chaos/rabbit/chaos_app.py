"""The app of the runs on RabbitMQ: one queue is a quorum queue, and one lets its messages die by itself.

`brief` has a time to live of its own, so that RabbitMQ ends what waits there, into `died`: an operator imports it. A worker that
does not consume the quorum queue does not know it either, for Celery has another kind of prefetch window where it knows one.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import celeryd_init

from tests.faults.chaos.chaos_app import app, produce
from tests.faults.chaos.rabbit.fleet import BRIEF, QUORUM, queues

__all__ = ["app", "produce"]

app.conf.task_queues = queues()


@celeryd_init.connect
def without_quorum(conf: Any = None, **_: Any) -> None:
    """A worker of classic queues."""
    if not os.environ.get("CHAOS_QUORUM"):
        conf.task_queues = [queue for queue in conf.task_queues if queue.name not in {QUORUM, BRIEF}]
