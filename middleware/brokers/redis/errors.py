"""Failures of Redis: which of them are the server's for now, so that the same step may be carried out a little later."""

from __future__ import annotations

from redis import exceptions

__all__ = ["is_transient"]

NOT_NOW = (
    OSError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
)
#: The same where redis-py has no class for it: the first word of the server's answer.
NOT_NOW_CODES = ("BUSY", "LOADING", "READONLY", "OOM", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOTREADY")


def is_transient(exc: BaseException) -> bool:
    """Whether this failure is the broker's for now: the same transition may be carried out a little later."""
    if isinstance(exc, NOT_NOW):
        return True
    return isinstance(exc, exceptions.RedisError) and str(exc).startswith(NOT_NOW_CODES)
