"""Log lines of this project: structlog events named `noun.verb_past`, written to the standard logger `redelivery`.

The host application's logging is not changed. If the host has configured structlog, these lines go through its processors;
otherwise they are `event key=value` lines. `docs/logging.md` lists the events.

Control characters are shown as escapes, and no URL has a user or a password. If an app of this process sets `redact`, a line has no
text of an exception either: only the places and types of a traceback stay. `celery_lines` does the same with Celery's lines.

While a task runs, its id, attempt, queue and generation are bound as structlog context variables. `TaskContext` is a standard
`logging.Filter` that puts the same values on records of the standard library.
"""

from __future__ import annotations

import logging
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import structlog
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.stdlib import LoggerFactory

from redelivery.display import harmless, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.typing import EventDict, WrappedLogger

BOUND = ("task_id", "attempt", "queue", "generation")
#: Replaces arguments, and the texts and tracebacks of exceptions.
HIDDEN = "(hidden: redact is set)"
#: The installations of this process that set `redact`. One redacts all lines, because a line does not name its installation.
redacting: weakref.WeakSet[Any] = weakref.WeakSet()
#: Keys whose values are texts of exceptions and handlers, and keys whose values are tracebacks.
_TEXTS, _TRACEBACKS = ("detail",), ("exception", "stack")


def error_text(exc: BaseException) -> str:
    """The text of an exception that may repeat a message's content; its type alone if `redact` is set."""
    return type(exc).__name__ if redacting else str(exc)


def _hide(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    if not redacting:
        return event
    event.update({name: HIDDEN for name in _TEXTS if event.get(name)})
    exc = _exception_of(event.pop("exc_info", None))
    if exc is not None:
        event["exception"] = places_of(exc)
    return event


def _exception_of(exc_info: Any) -> BaseException | None:
    """The exception in any form of `exc_info` that structlog accepts."""
    given = sys.exc_info() if exc_info and not isinstance(exc_info, (tuple, BaseException)) else exc_info
    return (given[1] if isinstance(given, tuple) else given) or None


def places_of(exc: BaseException) -> str:
    """A traceback without the texts of its exceptions."""
    chain = _chain(traceback.TracebackException.from_exception(exc))
    return "\n\n".join("".join((*each.stack.format(), f"{each.exc_type.__qualname__}: {HIDDEN}")) for each in chain)


def _chain(found: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """The exceptions that led to this one, the first cause first; this one is last."""
    if found is not None:
        yield from _chain(found.__cause__ or (None if found.__suppress_context__ else found.__context__))
        yield found


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Make every value of a line harmless. An exception whose text is harmless already is left to the host's processor."""
    rest = {name: tame(value, keeps_lines=name in _TRACEBACKS) for name, value in event.items() if name != "exc_info"}
    exc = _exception_of(event.get("exc_info"))
    if exc is None:
        return rest
    text = "".join(traceback.format_exception(exc)).rstrip("\n")
    shown = tame(text, keeps_lines=True)
    return {**rest, "exc_info": event["exc_info"]} if text == shown else {**rest, "exception": shown}


def tame(value: Any, *, keeps_lines: bool = False) -> Any:
    """A value of a line, made harmless; numbers stay. With `keeps_lines`, for a traceback, its lines stay."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {tame(name): tame(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [tame(each) for each in value]
    if keeps_lines:
        return "\n".join(map(harmless, str(value).split("\n")))
    return harmless(str(value))


_RENDER = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)
_PLAIN = (merge_contextvars, _hide, structlog.processors.format_exc_info, _escape, _RENDER)
#: Processors for a host whose handler formats with structlog: the event is passed on without rendering.
_UNRENDERED = (
    merge_contextvars,
    _hide,
    _escape,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
)


def _is_rendered_later(logger: logging.Logger) -> bool:
    """Whether a handler of these lines formats with structlog (as Airflow's do)."""
    at: logging.Logger | None = logger
    while at is not None:
        if any(isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _process(logger: WrappedLogger, method: str, event: EventDict) -> Any:
    """Render a line with the host's structlog configuration, or with our own if there is none."""
    config = structlog.get_config()
    processors: tuple[Any, ...] = _PLAIN
    if structlog.is_configured():
        processors = (_hide, _escape, *config["processors"])
        if not isinstance(config["logger_factory"], LoggerFactory) and _is_rendered_later(_LOGGER):
            processors = _UNRENDERED  # otherwise both the host's processors and its handler would render
    processed: Any = event
    for processor in processors:
        processed = processor(logger, method, processed)
    return processed


class Tracebacks(logging.Filter):
    """Makes the traceback that the standard library writes below a line harmless, and leaves it out if `redact` is set."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Write the traceback before a formatter does; the exception itself stays. Drops no record."""
        if redacting:
            record.exc_info = record.exc_text = None
        elif record.exc_info and record.exc_info[0] is not None:
            record.exc_text = tame("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"), keeps_lines=True)
        return True


_LOGGER = logging.getLogger("redelivery")
_LOGGER.addFilter(Tracebacks())

log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    _LOGGER,
    processors=[_process],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)


class TaskContext(logging.Filter):
    """Puts `task_id`, `attempt`, `queue` and `generation` on every record, for a formatter; they are empty outside a task."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the values; drops no record."""
        context = get_contextvars()
        for name in BOUND:
            if not hasattr(record, name):
                value = context.get(name, "")
                setattr(record, name, safe(value) if isinstance(value, str) else value)
        return True
