"""Celery's own log lines about single tasks: `redact` hides parts of them, and control characters in them are made harmless.

Celery logs what a task, a receiver of a signal or a chord raised, with traceback and arguments, and the whole body of a message
that it cannot use. Two filters are put on all its loggers, in the worker and so in its forked children. One works only with
`redact`: it removes arguments, texts of exceptions and tracebacks. The other always works: no id, name or text can move a
terminal's cursor or begin a new line. Limits: a task's return value stays in Celery's line; the application's lines do not change.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from celery.worker.consumer import consumer

from ..logs import HIDDEN, Tracebacks, redacting, tame

#: Celery's loggers, and those of its libraries that log what a callback raised. `celery.task` is the application's own.
LOGGERS = (
    "celery",
    *(f"celery.app.{name}" for name in ("amqp", "base", "builtins", "control", "trace")),
    *(f"celery.backends.{name}" for name in ("asynchronous", "azureblockblob", "base", "cache", "cassandra", "consul")),
    *(f"celery.backends.{name}" for name in ("cosmosdbsql", "database.session", "dynamodb", "gcs", "redis")),
    *(f"celery.{name}" for name in ("apps.worker", "beat", "bin.worker", "bootsteps", "evcam", "events.state", "fixups.django")),
    *(f"celery.{name}" for name in ("concurrency.asynpool", "concurrency.prefork", "contrib.abortable", "pool")),
    *(f"celery.{name}" for name in ("utils.dispatch.signal", "utils.functional", "worker")),
    *(f"celery.worker.{name}" for name in ("autoscale", "control", "loops", "pidbox", "request", "strategy")),
    *(f"celery.worker.consumer.{name}" for name in ("connection", "consumer", "control", "delayed_delivery", "gossip")),
    *(f"celery.worker.consumer.{name}" for name in ("mingle", "tasks")),
    *("kombu.asynchronous.hub", "kombu.asynchronous.timer", "multiprocessing", "py.warnings"),
)
#: Named fields of a line that are hidden.
NAMED = ("exc", "traceback", "args", "kwargs")
#: The logger whose lines have the name of a function, and then its arguments as text.
POOL = "celery.pool"
#: The logger that says why a worker ends.
WORKER = "celery.worker"
#: The logger of Python's warnings, and the text of Celery's warning there that contains an exception's text.
WARNINGS, OUTSIDE = "py.warnings", "Exception raised outside body"
#: Lines that hold a whole message.
WHOLE = ("UNKNOWN_FORMAT", "UNKNOWN_TASK_ERROR", "INVALID_TASK_ERROR", "MESSAGE_DECODE_ERROR")


class _Hiding(logging.Filter):
    """Changes the records about tasks while `redact` is set; drops none."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = {getattr(consumer, name, None) for name in WHOLE}

    def filter(self, record: logging.LogRecord) -> bool:
        if redacting and (record.name != WARNINGS or OUTSIDE in str(record.args)):
            record.exc_info = record.exc_text = None
            record.msg = _hidden(record.msg)
            args = record.args
            if isinstance(args, dict):
                record.args = _hidden(args)
            elif isinstance(args, tuple):
                shown = self._shown(record, len(args))
                record.args = (*map(_hidden, args[:shown]), *(HIDDEN,) * (len(args) - shown))
            if "data" in record.__dict__:
                record.__dict__["data"] = _hidden(record.__dict__["data"])
        return True

    def _shown(self, record: logging.LogRecord, parts: int) -> int:
        """How many of a line's first arguments may be shown."""
        if record.name == WARNINGS or record.msg in self._whole:
            return 0
        return 1 if record.name == POOL else parts


class Harmless(Tracebacks):
    """Makes each part of a line, and the traceback below it, harmless; drops no line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change only what is not harmless."""
        args = record.args
        if isinstance(args, dict):
            record.args = {name: _harmless(value, keeps_lines=name == "traceback") for name, value in args.items()}
        elif args:
            record.args = tuple(map(_harmless, args))
        else:
            record.msg = _harmless(record.msg, keeps_lines=True)
        return super().filter(record)


@dataclass(frozen=True)
class _Refused(logging.Filter):
    """Shortens the line of a worker that ends because the broker refuses a command: the broker's words, without a traceback."""

    refusals: tuple[type[BaseException], ...]

    def filter(self, record: logging.LogRecord) -> bool:
        exc = record.exc_info[1] if record.exc_info else None
        if record.levelno == logging.CRITICAL and isinstance(exc, self.refusals):
            record.exc_info, record.msg, record.args = None, "the broker refuses what this worker needs, and it ends: %s", (exc,)
        return True


_FILTERS = (_Hiding(), Harmless())


def guard_celery_lines(refusals: tuple[type[BaseException], ...]) -> None:
    """Make Celery's lines of this process obey `redact`, and harmless; a second call changes nothing.

    `refusals` are the exceptions by which the broker refuses a command of this worker.
    """
    logging.getLogger(WORKER).addFilter(_Refused(refusals))  # first: the others turn each exception into text
    for name in LOGGERS:
        for each in _FILTERS:
            logging.getLogger(name).addFilter(each)


def _harmless(value: Any, *, keeps_lines: bool = False) -> Any:
    """A text, or an exception's text, made harmless; any other value as it is."""
    if not isinstance(value, (str, BaseException)):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - Celery writes an exception without a text in its own way
        return value
    shown = tame(text, keeps_lines=keeps_lines)
    return value if shown == text else shown


def _hidden(value: Any) -> Any:
    if isinstance(value, BaseException):
        return type(value).__name__
    if isinstance(value, dict):
        return {name: HIDDEN if name in NAMED and each else each for name, each in value.items()}
    return value
