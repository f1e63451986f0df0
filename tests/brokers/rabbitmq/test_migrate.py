"""`celery migrate` from RabbitMQ to Redis, as the documents say to do it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.running import ROOT, Shop, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rabbit import Rabbit
    from tests.support.servers import Server

pytestmark = pytest.mark.xdist_group("amqp-migrate")


def recipe() -> str:
    """The program in the document about migrating, without its import of the app."""
    [found] = re.findall(r"```python\n(# for example: `celery migrate`.*?)```", (ROOT / "docs/migrating.md").read_text(), re.DOTALL)
    return str(found).replace("from shop import app\n", "")


def test_what_has_come_back_from_a_delay_is_migrated_by_its_queue(rabbit: Rabbit, server: Server, folder: Path) -> None:
    """Its address is redelivery's exchange, which Redis does not have: `celery migrate` itself would lose it."""
    source: Any = rabbit
    shop = Shop(source, folder)
    try:
        worker = shop.start(pool="threads")
        task_id = shop.send("ok", countdown=4)
        shop.ended(task_id, "deferred")
        worker.kill()
        until(lambda: rabbit.leftovers().get("celery") == 1, what="it to come back to its queue")
        code = recipe().replace("amqp://localhost", rabbit.url).replace("redis://localhost", server.url)
        exec(compile(code, "migrating.md", "exec"), {"app": shop.app})  # noqa: S102 - the document's own program
        raws: Any = server.client.lrange("celery", 0, -1)
        assert [json.loads(raw)["headers"]["id"] for raw in raws] == [task_id]
        assert not rabbit.leftovers()
    finally:
        shop.stop()
