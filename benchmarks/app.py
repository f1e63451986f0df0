"""The benchmarks' Celery app: plain, or with redelivery installed; its broker comes from the environment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_failure, worker_ready

from benchmarks.stamps import write_stamp
from benchmarks.telling import instrument, tell
from redelivery import Redelivery

app = Celery(os.environ["BENCH_SIDE"], set_as_current=False, broker=os.environ["BENCH_BROKER"])
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
app.conf.redelivery = json.loads(os.environ.get("BENCH_SETTINGS", "{}"))
if os.environ.get("BENCH_QUEUE_TYPE") == "quorum":
    app.conf.task_default_queue_type = "quorum"
if os.environ.get("BENCH_VISIBILITY_TIMEOUT"):
    app.conf.broker_transport_options = {"visibility_timeout": int(os.environ["BENCH_VISIBILITY_TIMEOUT"])}
if os.environ.get("BENCH_RESULTS"):
    app.conf.result_backend = os.environ["BENCH_BROKER"]
if os.environ.get("BENCH_OTEL"):
    tell()
if os.environ.get("BENCH_INSTRUMENTED"):
    instrument()
if os.environ["BENCH_SIDE"] == "redelivery":
    Redelivery(app)


@worker_ready.connect
def ready(**_: Any) -> None:
    Path(f"{os.environ['BENCH_READY']}.{os.getpid()}").touch()


def failed(**_: Any) -> None:
    """Report that a task has finally failed: append one byte to a file."""
    descriptor = os.open(os.environ["BENCH_FAILED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b".")
    os.close(descriptor)


if os.environ.get("BENCH_FAILED"):
    task_failure.connect(failed)


@app.task(ignore_result=True)
def noop(*_: Any) -> None:
    """Does nothing."""


@app.task
def answer() -> int:
    return 42


@app.task(ignore_result=True, autoretry_for=(RuntimeError,), retry_kwargs={"countdown": 1, "max_retries": 4})
def autoretried() -> None:
    """Fails. Celery retries it four times, a second apart."""
    raise RuntimeError


@app.task(ignore_result=True)
def failing() -> None:
    """Fails. The policy gives it five attempts, a second apart."""
    raise RuntimeError


@app.task(ignore_result=True)
def stamp(since: float, path: str) -> None:
    write_stamp(since, path)


@app.task(ignore_result=True)
def mark(number: int, path: str, seconds: float) -> None:
    """Works for a moment, and notes that it ran."""
    time.sleep(seconds)
    _note(path, str(number))


@app.task(ignore_result=True)
def held(path: str) -> None:
    """Notes that it has begun. The first run does not end."""
    is_first = not Path(path).exists()
    _note(path, "begun")
    if is_first:
        time.sleep(86_400)


def _note(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
