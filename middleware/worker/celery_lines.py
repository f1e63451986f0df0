"""Celery's own log lines about single tasks: what of them `redact` hides.

Celery writes what a task raised, with its traceback and its arguments, and the whole body of a message that it cannot use. The
filter here is put on the loggers that do so, in the worker and so in the children that it forks: it takes arguments, texts of
exceptions and tracebacks out. Limit: what a task returned stays, as Celery's line has it.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer import consumer

from ..logs import HIDDEN, redacting

__all__ = ["hide_in_celery_lines"]

LOGGERS = (
    "celery.app.trace",
    "celery.worker.request",
    "celery.worker.strategy",
    "celery.worker.consumer.consumer",
    "redelivery.middleware.worker.worker_lost",
)
#: What such a line has by name and is not to say.
NAMED = ("exc", "traceback", "args", "kwargs")
#: Lines that hold a whole message.
WHOLE = ("UNKNOWN_FORMAT", "UNKNOWN_TASK_ERROR", "INVALID_TASK_ERROR", "MESSAGE_DECODE_ERROR")


class _Hiding(logging.Filter):
    """Changes the records of tasks while `redact` is set; lets every one through."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = {getattr(consumer, name, None) for name in WHOLE}

    def filter(self, record: logging.LogRecord) -> bool:
        """Take out of a record what is to be hidden."""
        if redacting:
            record.exc_info = record.exc_text = None
            given = record.args
            if isinstance(given, dict):
                record.args = _hidden(given)
            elif isinstance(given, tuple):
                record.args = (HIDDEN,) * len(given) if record.msg in self._whole else tuple(map(_hidden, given))
            record.__dict__.update({"data": _hidden(record.__dict__["data"])} if "data" in record.__dict__ else {})
        return True


_HIDING = _Hiding()


def hide_in_celery_lines() -> None:
    """From here on Celery's lines of this process obey `redact`; a second time changes nothing."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_HIDING)


def _hidden(value: Any) -> Any:
    if isinstance(value, BaseException):
        return type(value).__name__
    if isinstance(value, dict):
        return {name: HIDDEN if name in NAMED and each else each for name, each in value.items()}
    return value
