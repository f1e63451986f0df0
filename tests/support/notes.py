"""What an app of the tests reports to its test: a line for each run of a task, and that its worker consumes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["note", "ready"]


def note(task_id: str, **facts: Any) -> None:
    """Append one line in one write, so that lines of different processes do not mix."""
    line = json.dumps({"id": task_id, "at": time.time(), "pid": os.getpid(), **facts}, default=repr) + "\n"
    descriptor = os.open(os.environ["SHOP_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def ready(**_: Any) -> None:
    """Report that the worker consumes. Apps connect this to Celery's `worker_ready`."""
    Path(os.environ["SHOP_READY"]).touch()
