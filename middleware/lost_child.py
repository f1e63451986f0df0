"""A lost pool child: what Celery 5.7's request knows about it, and what stands in for that on 5.6, which knows less."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import WorkerLostError

__all__ = ["success_was_stored", "worker_lost_info"]


def success_was_stored(request: Any) -> bool:
    """Whether the child was lost after its success had been stored. Celery 5.6 does not ask: there the attempt counts as lost."""
    asked = getattr(request, "_success_was_stored", None)
    return asked is not None and bool(asked())


def worker_lost_info(request: Any, exc: BaseException) -> ExceptionInfo:
    """A task's `SystemExit` or `KeyboardInterrupt`, reported by a child that ends of it, as the loss of that child."""
    made = getattr(request, "_worker_lost_info", None)
    if made is not None:
        return made(exc)
    try:
        msg = f"Worker exited prematurely: {exc!r}."
        raise WorkerLostError(msg)  # noqa: TRY301 - the report reads what is being handled
    except WorkerLostError:
        return ExceptionInfo()
