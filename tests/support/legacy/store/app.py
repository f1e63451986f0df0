"""The app: Django's settings, the table, the Celery app and its base classes.

STORE_REDELIVERY adds two lines. Nothing else in this folder differs.
"""

from __future__ import annotations

import os
from typing import Any

import django
from celery import Celery, Task
from celery.contrib.django.task import DjangoTask
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[],
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["STORE_DATABASE"],
            "OPTIONS": {"timeout": 30},
        },
    },
    CELERY_BROKER_URL=os.environ["STORE_BROKER"],
    CELERY_RESULT_BACKEND=os.environ["STORE_BROKER"],
    CELERY_RESULT_EXTENDED=True,
    CELERY_TASK_TRACK_STARTED=True,
    CELERY_TASK_ROUTES={"store.tasks.mail": {"queue": "mail"}},
    CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP=True,
    CELERY_WORKER_LOST_WAIT=1,
)
django.setup()

app = Celery("store", task_cls=DjangoTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["store"])

if os.environ.get("STORE_REDELIVERY"):
    from redelivery import Redelivery

    Redelivery(app, {"queues": {"#": {"redelivery_delay": 0.02, "redelivery_delay_multiplier": 1}}})


class Audited(DjangoTask):
    """Records what happens to its tasks."""

    abstract = True

    def write(self, what: str) -> None:
        from store.models import Line  # noqa: PLC0415 - models come after Django's set-up

        Line.objects.create(task=self.name, task_id=self.request.id or "", what=what)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - Celery's signature
        self.write("success")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002 - as above
        self.write(f"failure {type(exc).__name__}")


class Connected(Task):
    """Opens a connection for each task, and closes it. Turns a `PermissionError` into a result."""

    abstract = True
    connection: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.connection = "open"
        try:
            return super().__call__(*args, **kwargs)
        except PermissionError:
            return "shut"
        finally:
            self.connection = None


class Counting(Audited):
    """Counts the runs on its instance."""

    abstract = True

    def __init__(self) -> None:
        self.calls = 0

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - Celery's signature
        self.calls += 1
