"""Log lines of this project: structlog events named `noun.verb_past`, written to the standard logger `redelivery`.

The host application's own logging is left alone: nothing is configured here. Where the host has configured structlog, our lines go
through its processors; where it has not, they are written as `event key=value` lines. `docs/logging.md` lists the events.

What a task writes carries the task's id, attempt, queue and generation: they are bound as structlog context variables while it
runs, and `TaskContext` is a standard `logging.Filter` that puts the same values on records of the standard library.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog
from structlog.contextvars import get_contextvars, merge_contextvars

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

__all__ = ["TaskContext", "log"]

BOUND = ("task_id", "attempt", "queue", "generation")

_PLAIN = (
    merge_contextvars,
    structlog.processors.format_exc_info,
    structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False),
)


def _process(logger: WrappedLogger, method: str, event: EventDict) -> Any:
    """Our own rendering, where the host has none configured."""
    if structlog.is_configured():
        processed: Any = event
        for processor in structlog.get_config()["processors"]:
            processed = processor(logger, method, processed)
        return processed
    rendered: Any = event
    for processor in _PLAIN:
        rendered = processor(logger, method, rendered)
    return rendered


#: The logger of this project.
log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("redelivery"),
    processors=[_process],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)


class TaskContext(logging.Filter):
    """Puts `task_id`, `attempt`, `queue` and `generation` on every record, empty outside a task, for a formatter to use."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the values; lets every record through."""
        context = get_contextvars()
        for name in BOUND:
            if not hasattr(record, name):
                setattr(record, name, context.get(name, ""))
        return True
