"""An app on `memory://` with its worker in a thread. It prints how its tasks ended, as one line of JSON.

It runs in its own process, because such a worker changes global state of Celery.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker
from structlog.testing import capture_logs

from redelivery import DeadLetter, Redelivery
from tests.support.running import until

app = Celery("memory", broker="memory://")
app.conf.worker_hijack_root_logger = False
Redelivery(app, {"queues": {"#": {"redelivery_delay": 0.2, "redelivery_delay_multiplier": 1.0, "max_delivery_attempts": 3}}})
runs: dict[str, list[float]] = {}


@app.task(bind=True, name="fails")
def fails(self: Any, times: int) -> None:
    runs.setdefault(self.request.id, []).append(time.time())
    if len(runs[self.request.id]) <= times:
        message = "no"
        raise RuntimeError(message)


@app.task(name="dies")
def dies() -> None:
    message = "card stolen"
    raise DeadLetter(message)


def main() -> None:
    """Run each task, and print its events, the times of its runs, and its dead letter."""
    with capture_logs() as logs, start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, loglevel="WARNING"):
        began = time.time()
        sent = {
            "twice": fails.delay(2),
            "always": fails.delay(99),
            "delayed": fails.apply_async((0,), countdown=1),
            "held": fails.apply_async((0,), headers={"redelivery-delivery-delay-ms": 1000}),
            "odd": dies.apply_async(headers={"what": {1, 2}}),
        }
        ends = {"succeeded", "dead_lettered"}

        def recorded() -> list[Any]:
            return [line for line in list(logs) if line["event"] == "outcome.recorded"]

        until(lambda: {line["task_id"] for line in recorded() if line["outcome"] in ends} == {each.id for each in sent.values()})
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            letters = {
                letter.headers["id"]: letter.headers for letter in iter(lambda: channel.basic_get("DLQ.celery", no_ack=True), None)
            }
    found = {
        name: {
            "outcomes": [f"{line['outcome']} {line['attempt']}" for line in recorded() if line["task_id"] == each.id],
            "runs": [at - began for at in runs.get(each.id, [])],
            "letter": each.id in letters and letters[each.id]["redelivery"]["deaths"][0]["reason"],
        }
        for name, each in sent.items()
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
