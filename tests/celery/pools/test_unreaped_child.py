"""A child has closed its files but cannot be waited for yet: it is soon replaced, and the worker lives on."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop

ONCE = {"queues": {"#": {"max_delivery_attempts": 1}}}
#: How long the child lives on after its files are closed, in seconds: longer than Celery tries to wait for it.
LINGERING = 0.5
#: The interval of Celery's own timer, in seconds.
CELERYS = 5.0


def test_the_place_of_a_child_that_cannot_be_waited_for_yet_is_soon_taken(shop: Callable[..., Shop]) -> None:
    """Celery's timer runs every five seconds; without our patch each death after the first would wait for it."""
    here = shop(settings=ONCE)
    here.start(concurrency=1)
    took = []
    for _ in range(4):
        poison = here.send("lingers", LINGERING)
        until(lambda poison=poison: here.runs(poison), what="it to begin")  # type: ignore[misc]
        began = time.monotonic()
        here.ended(poison, "dead_lettered")
        here.ended(here.send("ok"), "succeeded")
        took.append(time.monotonic() - began)
    assert median(took[1:]) < LINGERING + CELERYS / 2


def test_a_connection_that_breaks_beside_a_death_does_not_end_the_worker(shop: Callable[..., Shop]) -> None:
    """Celery's new event loop would watch the closed file of such a child, and fail: `file descriptor is None`."""
    here = shop(settings=ONCE)
    worker = here.start(concurrency=1)
    poison = here.send("lingers", 4 * LINGERING)
    until(lambda: here.runs(poison), what="it to begin")
    time.sleep(LINGERING)  # until the worker has noticed the closed files, which it does not log
    here.server.client.client_kill_filter(_type="normal", skipme=True)
    here.ended(poison, "dead_lettered")
    here.ended(here.send("ok"), "succeeded")
    assert worker.process.poll() is None
    assert "file descriptor is None" not in worker.text
