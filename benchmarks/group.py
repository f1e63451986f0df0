"""A group, and a loop of `delay()`: the cost of publication for each of many tasks, and the round trips. No worker runs."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from celery import group as celery_group
from redis.connection import AbstractConnection

from benchmarks.figures import less
from benchmarks.sides import side

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figure

__all__ = ["group", "loop"]

WARM_UP = 50


def group(name: str, *, tasks: int, broker: str = "valkey") -> dict[str, Figure]:
    """Publish one group. Measures, for each task, the time and the processor time here and in the broker (µs); and round trips."""
    with side(name, broker=broker) as here:
        task = here.app.tasks["benchmarks.app.noop"]

        def publish(count: int) -> None:
            celery_group([task.s(number) for number in range(count)], app=here.app).apply_async()

        return _measured(here, publish, tasks)


def loop(name: str, *, tasks: int) -> dict[str, Figure]:
    """Call `delay()` in a loop, with redelivery in a `publishing()` block. Returns the figures of `group`."""
    with side(name) as here:
        send = here.sender("noop")
        install = getattr(here.app, "redelivery", None)

        def publish(count: int) -> None:
            with nullcontext() if install is None else install.publishing():
                for number in range(count):
                    send(number)

        return _measured(here, publish, tasks)


def _measured(here: Any, publish: Callable[[int], None], count: int) -> dict[str, Figure]:
    publish(WARM_UP)
    broker, used, began = here.broker_seconds(), time.process_time(), time.perf_counter()
    publish(count)
    took, used, broker = time.perf_counter() - began, time.process_time() - used, here.broker_seconds() - broker
    asked = _round_trips(lambda: publish(count))
    figures = {
        "publish_mean": less(took / count * 1e6, "µs"),
        "producer_processor": less(used / count * 1e6, "µs/task"),
        "broker_processor": less(broker / count * 1e6, "µs/task"),
    }
    return figures | ({"round_trips": less(asked, "")} if asked else {})


def _round_trips(publish: Callable[[], None]) -> int:
    """The number of times that redis-py sends data during `publish`."""
    sent, send = 0, cast("Callable[..., None]", AbstractConnection.send_packed_command)

    def counted(self: AbstractConnection, *args: Any, **options: Any) -> None:
        nonlocal sent
        sent += 1
        send(self, *args, **options)

    with mock.patch.object(AbstractConnection, "send_packed_command", counted):
        publish()
    return sent
