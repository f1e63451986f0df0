"""The sender: a Celery app with one task, and the two lines that install redelivery.

Environment: `WEBHOOKS_BROKER` (a `redis://` or an `amqp://` URL), `WEBHOOKS_SECRET` (the key of the signatures).
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from redelivery import DeadLetter, RedeliverAfter, Redelivery
from webhooks import signature

#: Seconds that the sender waits for an answer.
TIMEOUT = 0.5

app = Celery("webhooks", broker=os.environ.get("WEBHOOKS_BROKER", "redis://localhost:6379/0"))
app.conf.task_default_queue = "webhooks"
# Only for RabbitMQ: with confirms, a producer knows that the broker has its task.
app.conf.broker_transport_options = {"confirm_publish": True}
# Short times, so that the demo ends within a minute. The default is 1 s, then doubled up to 10 minutes.
# (RabbitMQ rounds up to whole seconds, and needs no lease.)
app.conf.redelivery = {
    "lease": 3,
    "queues": {"webhooks": {"max_delivery_attempts": 5, "redelivery_delay": 0.1, "redelivery_delay_multiplier": 2.0}},
}
# The time that Celery waits for the result of a dead pool child (10 s by default).
app.conf.worker_lost_wait = 0.5

Redelivery(app)


class DeliveryError(Exception):
    """The receiver answered with an error. Another attempt may succeed."""


@app.task(name="webhooks.deliver")
def deliver(url: str, payload: dict[str, Any]) -> int:
    """Send one webhook; returns the status of the answer."""
    if payload.get("crash"):
        # Simulates a native parser that crashes: no exception, no clean-up, the process is gone.
        os.kill(os.getpid(), signal.SIGKILL)
    status, retry_after = post(url, json.dumps(payload).encode())
    if status == HTTPStatus.SERVICE_UNAVAILABLE and retry_after is not None:
        raise RedeliverAfter(float(retry_after))
    said = f"{status} {HTTPStatus(status).phrase}"
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise DeadLetter(said)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise DeliveryError(said)
    return status


def post(url: str, body: bytes) -> tuple[int, str | None]:
    """Send a signed body; returns the status and `Retry-After`. Raises `OSError` and `http.client.HTTPException`."""
    timestamp = int(time.time())
    secret = os.environ["WEBHOOKS_SECRET"].encode()
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)
    headers = {
        "Content-Type": "application/json",
        signature.TIMESTAMP: str(timestamp),
        signature.SIGNATURE: signature.sign(secret, timestamp, body),
    }
    try:
        connection.request("POST", parts.path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("Retry-After")
    finally:
        connection.close()
