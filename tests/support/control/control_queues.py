"""The queues of the tests of routing: one on a direct exchange, two on one topic exchange, and a broadcast queue."""

from __future__ import annotations

from kombu import Exchange, Queue
from kombu.common import Broadcast

__all__ = ["EVERYONE", "NEWS", "QUEUES", "ROUTES"]

NEWS = Exchange("news", type="topic")
EVERYONE = Exchange("everyone", type="fanout")
QUEUES = (
    Queue("celery"),
    Queue("billing", Exchange("accounts", type="direct"), routing_key="bill"),
    Queue("archive", NEWS, routing_key="news.#"),
    Queue("alerts", NEWS, routing_key="news.urgent.*"),
    Broadcast("everyone"),
)
ROUTES = {"tests.support.control.control_app.bills": {"queue": "billing"}}
