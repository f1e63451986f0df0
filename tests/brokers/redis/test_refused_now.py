"""A server that refuses for a while: workers that start or connect again meanwhile wait for it, as for a server that is away."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as BrokerGone
from redis.exceptions import ResponseError

from redelivery.middleware.brokers.redis.receiving.owner import Owner
from redelivery.middleware.brokers.redis.receiving.receiver import Receiver
from tests.support.desk import Desk
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.running import Shop
    from tests.support.servers import Server


def test_workers_wait_while_replicas_are_missing(shop: Callable[..., Shop]) -> None:
    """`min-replicas-to-write`: one worker loses its connection meanwhile, another one starts; both go on, and nothing is lost.

    They try again each second: Celery calls more than five restarts a second an error.
    """
    here = shop(conf={"broker_connection_retry_on_startup": True})
    runs, client = here.start(), here.server.client
    client.config_set("min-replicas-to-write", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    starts = here.start(wait=False)
    until(lambda: all(worker.text.count("accepts no writes now: ") > 5 for worker in (runs, starts)), what="both to be refused")
    client.config_set("min-replicas-to-write", 0)
    until(lambda: "worker.started" in starts.text and "owner.reconnected" in runs.text, what="both workers to go on")
    here.ended(here.send("ok"), "succeeded")
    assert "Frequent restarts" not in runs.text + starts.text


def test_a_worker_connects_again_after_a_script_that_keeps_the_server_busy(any_server: Server) -> None:
    """The answer BUSY to its receiving connection is no reason to end."""
    desk, client = Desk(any_server), any_server.client
    client.config_set("lua-time-limit", 1)
    owner = Owner(desk.transport, "w@desk")
    owner.begin("")
    channel: Any = desk.app.connection_for_read().default_channel
    channel.arm(Receiver(owner, lambda: 64, lambda: 1, lambda *_: None))

    def keep_busy() -> None:
        with suppress(ResponseError):
            any_server.client.eval("while true do end", 0)

    script = threading.Thread(target=keep_busy)
    script.start()
    try:
        until(lambda: is_busy(client))
        with pytest.raises(BrokerGone, match="BUSY"):
            channel.client.connection_pool.get_connection()
    finally:
        client.script_kill()
        script.join()


def is_busy(client: Any) -> bool:
    """Whether a script keeps this server from answering anything else."""
    try:
        client.ping()
    except ResponseError as exc:
        return "BUSY" in str(exc)
    return False
