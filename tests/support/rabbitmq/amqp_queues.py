"""Queues as users of RabbitMQ have them: topic and direct exchanges, and queues of both types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kombu import Exchange, Queue

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["configure"]

QUORUM = {"x-queue-type": "quorum"}
SHOP, POST = Exchange("shop", "topic"), Exchange("post", "direct")


def configure(app: Celery) -> None:
    app.conf.task_queues = [
        Queue("orders", SHOP, routing_key="orders.#", queue_arguments=QUORUM),
        Queue("audit", SHOP, routing_key="#", queue_arguments=QUORUM),
        Queue("mails", POST, routing_key="mail"),
        Queue("eu.mails", POST, routing_key="mail.eu"),
        Queue("urgent", POST, routing_key="urgent", queue_arguments={"x-max-priority": 9}),
    ]
    app.conf.task_default_queue = "orders"
    app.conf.task_default_exchange = "shop"
    app.conf.task_default_exchange_type = "topic"
    app.conf.task_default_routing_key = "orders.new"
    app.conf.broker_transport_options = {"confirm_publish": True}
