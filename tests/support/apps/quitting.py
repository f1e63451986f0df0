"""The tests' app with signal receivers that end their process: Celery does not catch `SystemExit`."""

from __future__ import annotations

from typing import Any, NoReturn

from celery import signals

from tests.support.shop import app

__all__ = ["app"]


@signals.task_failure.connect
@signals.task_retry.connect
def quits(**_: Any) -> NoReturn:
    raise SystemExit(7)
