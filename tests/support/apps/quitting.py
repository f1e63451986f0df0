"""The tests' app with receivers of Celery's signals that end their process: `SystemExit`, which Celery does not catch."""

from __future__ import annotations

from typing import Any, NoReturn

from celery import signals

from tests.support.shop import app

__all__ = ["app"]


@signals.task_failure.connect
@signals.task_retry.connect
def quits(**_: Any) -> NoReturn:
    """End the process."""
    raise SystemExit(7)
