"""The app: tasks are defined before and after `Redelivery(app)`, and its configuration comes last."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.contrib.django.task import DjangoTask
from celery.signals import worker_ready

from redelivery import Redelivery
from tests.support.adopted.notes import note
from tests.support.notes import ready

app = Celery("adopted", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BACKEND"], task_cls=DjangoTask)


@app.task(bind=True, name="before")
def before(self: Any) -> list[str]:
    if note(self) == 1:
        message = "once"
        raise RuntimeError(message)
    return [cls.__name__ for cls in type(self).__mro__]


Redelivery(app)
EARLY = (app.configured, app.finalized)
app.config_from_object("tests.support.adopted.conf", namespace="CELERY")
app.autodiscover_tasks(["tests.support.adopted"])


@app.task(bind=True, name="after")
def after(self: Any) -> str:
    if note(self) == 1:
        message = "once"
        raise RuntimeError(message)
    return "after"


@app.task(name="early")
def early() -> list[bool]:
    """Whether `Redelivery(app)` configured or finalised the app, which it must not do."""
    return list(EARLY)


worker_ready.connect(ready)
