"""A shop whose tasks fail if a file exists, as after a bad deployment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from celery import Celery

from redelivery import Redelivery

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.broker_transport_options = {"confirm_publish": True} if app.conf.broker_url.startswith("amqp") else {}
app.conf.task_ignore_result = True
Redelivery(app, {"lease": 2, "queues": {"#": {"max_delivery_attempts": 3, "redelivery_delay": 0.1}}})


@app.task
def charge(order: int) -> None:
    """Charge an order. The new release does not find the currency."""
    prices = {"EUR": 10}
    currency = "euro" if Path("new-release").exists() else "EUR"
    _note("charged", f"{order} {prices[currency]}")


@app.task
def render(order: int) -> None:
    """Render an invoice. A huge invoice kills its process, as the kernel does without memory."""
    if order == 13 and not Path("more-memory").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    _note("rendered", str(order))


@app.task
def remind(order: int) -> None:
    _note("reminded", str(order))


def _note(name: str, line: str) -> None:
    with Path(name).open("a") as file:
        file.write(f"{line}\n")
