"""A server that refuses for a while: workers that start or connect again meanwhile wait for it, as for a server that is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop


def test_workers_wait_while_replicas_are_missing(shop: Callable[..., Shop]) -> None:
    """`min-replicas-to-write`: one worker loses its connection meanwhile, another one starts; both go on, and nothing is lost."""
    here = shop(conf={"broker_connection_retry_on_startup": True})
    runs, client = here.start(), here.server.client
    client.config_set("min-replicas-to-write", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    starts = here.start(wait=False)
    until(lambda: all("accepts no writes now: " in worker.text for worker in (runs, starts)), what="both to be refused")
    client.config_set("min-replicas-to-write", 0)
    until(lambda: "worker.started" in starts.text and "owner.reconnected" in runs.text, what="both workers to go on")
    here.ended(here.send("ok"), "succeeded")
