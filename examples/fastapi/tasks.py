"""The worker's app: one task, which builds reports from a source that may be missing."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from redelivery import RedeliverAfter, Redelivery

__all__ = ["app", "build"]

app = Celery("reports", broker=os.environ.get("REPORTS_BROKER", "redis://localhost:6379/0"))
app.conf.result_backend = app.conf.broker_url
app.conf.task_default_queue = "reports"
# Short times, so that the example ends soon.
app.conf.redelivery = {"queues": {"reports": {"max_delivery_attempts": 3, "redelivery_delay": 0.2}}}
Redelivery(app)


@app.task(bind=True, name="reports.build")
def build(self: object, name: str) -> str:
    """Build a report; returns its text."""
    attempt = self.request.retries + 1  # type: ignore[attr-defined]
    if name == "later" and attempt == 1:
        raise RedeliverAfter(0.5, detail="the figures are not in yet")
    source = Path(os.environ["REPORTS_SOURCE"], name)
    return f"{name}: {len(source.read_text())} characters, at attempt {attempt}"
