"""An app as Airflow's Celery provider 3.26 makes it for its executor, with the configuration that it has by default.

Its task handles errors as `execute_workload` does: if the workload runs elsewhere, it raises `Ignore`; it raises all other errors
again. The message says what the workload does. `imports` names a module of the user's (`celery_config_options` in Airflow's
configuration), because users cannot edit the app.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore
from celery.signals import worker_ready

from tests.support.notes import note, ready

__all__ = ["app"]

CONFIGURATION: dict[str, Any] = {
    "accept_content": ["json"],
    "event_serializer": "json",
    "worker_prefetch_multiplier": 1,
    "task_acks_late": True,
    "task_default_queue": "default",
    "task_default_exchange": "default",
    "task_track_started": True,
    "broker_url": os.environ["SHOP_BROKER"],
    "broker_transport_options": {"visibility_timeout": 86400},
    "broker_connection_retry_on_startup": True,
    "result_backend": os.environ["SHOP_BACKEND"],
    "worker_enable_remote_control": True,
    "worker_redirect_stdouts": False,
    "worker_hijack_root_logger": False,
    "imports": ["tests.support.integrated.executor_setup"],
    "redelivery": json.loads(os.environ["SHOP_SETTINGS"]),
}
app = Celery("airflow.providers.celery.executors.celery_executor", config_source=CONFIGURATION)


class AlreadyRunningError(Exception):
    """Stands for Airflow's `TaskAlreadyRunningError`."""


@app.task(name="execute_workload")
def execute_workload(input: str) -> None:  # noqa: A002 - Airflow's name
    workload = json.loads(input)
    note(execute_workload.request.id)
    try:
        supervise(workload["does"])
    except AlreadyRunningError:
        raise Ignore from None


def supervise(what: str) -> None:
    """Return, raise or die, as Airflow's supervisor may."""
    if what == "fail":
        message = "no"
        raise RuntimeError(message)
    if what == "run elsewhere":
        raise AlreadyRunningError
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "take long":
        time.sleep(3600)


worker_ready.connect(ready)
