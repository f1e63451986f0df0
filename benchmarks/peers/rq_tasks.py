"""RQ's tasks."""

from __future__ import annotations

from typing import Any

from benchmarks.stamps import write_stamp

__all__ = ["failing", "noop", "stamp"]


def noop(*_: Any) -> None:
    """Does nothing."""


def failing() -> None:
    """Fails. It is published with four retries, a second apart."""
    raise RuntimeError


def stamp(since: float, path: str) -> None:
    write_stamp(since, path)
