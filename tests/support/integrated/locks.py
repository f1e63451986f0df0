"""Tasks that run one at a time, by celery-once and celery-singleton. A second run waits until a test opens its gate."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

from celery_once import QueueOnce
from celery_singleton import Singleton

from tests.support.notes import note
from tests.support.shop import app

__all__ = ["app"]

SECONDS = 3600
URL = os.environ["SHOP_BROKER"]
app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": URL, "default_timeout": SECONDS}}
app.conf.singleton_backend_url = URL.replace("redis+socket://", "unix://")
app.conf.singleton_lock_expiry = SECONDS


def plays(self: Any, verb: str, times: int = 10**6) -> str:
    """Does what `verb` says, `times` times. Then it succeeds."""
    note(self.request.id)
    notes = Path(os.environ["SHOP_RUNS"])
    runs = sum(json.loads(line)["id"] == self.request.id for line in notes.read_text().splitlines())
    while runs > 1 and not notes.with_name(f"gate-{self.request.id}").exists():
        time.sleep(0.02)
    if runs > times:
        return "at last"
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if verb == "retry":
        raise self.retry(countdown=0.1)
    message = "no"
    raise RuntimeError(message)


@app.task
def publish(kind: str, *args: Any) -> str | None:
    """Publish a task of one library. Returns its id, or None if the library refuses it as a duplicate."""
    task_id = str(uuid.uuid4())
    published = {"once": once, "single": single}[kind].apply_async(args, task_id=task_id)
    return task_id if published.id == task_id else None


once = app.task(plays, bind=True, base=QueueOnce, name=f"{__name__}.once", max_retries=None, once={"graceful": True})
single = app.task(plays, bind=True, base=Singleton, name=f"{__name__}.single", max_retries=None)
