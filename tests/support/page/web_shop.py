"""An app whose operator's page is tested. Its broker, settings and timeouts come from the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery

from redelivery import Redelivery

app = Celery("shop", broker=os.environ["WEB_SHOP_BROKER"])
app.conf.task_default_queue = "orders"
app.conf.broker_connection_timeout = 2
Redelivery(app, {"queues": {"#": {"max_delivery_attempts": 3}}, **json.loads(os.environ.get("WEB_SHOP_SETTINGS", "{}"))})
if "WEB_SHOP_TIMEOUT" in os.environ:
    from redelivery.workers.web.shared import previews

    previews.TIMEOUT = float(os.environ["WEB_SHOP_TIMEOUT"])
if "WEB_SHOP_IDLE" in os.environ:
    from redelivery.workers.web import server

    server.IDLE = int(os.environ["WEB_SHOP_IDLE"])


@app.task(name="shop.pay")
def pay(number: int, cause: str) -> int:
    """Fail while the file of this cause exists. Otherwise note the payment in a line."""
    if Path(os.environ["WEB_SHOP_BROKEN"], cause).exists():
        kinds: dict[str, type[Exception]] = {"refused": ValueError, "late": TimeoutError, "gone": LookupError}
        msg = f"payment {number}: {cause}"
        raise kinds[cause](msg)
    with Path(os.environ["WEB_SHOP_BROKEN"], "paid").open("a") as paid:
        paid.write(f"{number}\n")
    return number
