"""Results that RabbitMQ carries to the caller (Celery's `rpc://`): one reply for each end of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kombu import Queue

from tests.support.running import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit


def test_the_caller_of_an_unknown_task_gets_one_reply(rabbit: Rabbit, folder: Path) -> None:
    """Celery sends it. A second one would stay in the caller's memory, and be what a redriven task seems to have returned."""
    shop = Shop(cast("Any", rabbit), folder, backend="rpc://")
    with rabbit.connection() as connection:
        Queue("replies", channel=connection.default_channel).declare()
    worker = shop.start()
    try:
        ids = [shop.send("no_such_task", reply_to="replies") for _ in range(2)]
        for each in ids:
            shop.ended(each, "dead_lettered")
    finally:
        worker.stop()  # whatever it sends has been sent
    with rabbit.connection() as connection, connection.SimpleQueue("replies") as replies:
        received = [replies.get(timeout=20) for _ in ids]
        assert [(each.payload["task_id"], each.payload["status"]) for each in received] == [(each, "FAILURE") for each in ids]
        assert rabbit.depth("replies") == 0
