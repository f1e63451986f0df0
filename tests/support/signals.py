"""Whether a process has received and handled a signal, by Linux's `/proc`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["is_handled", "is_pending"]


def is_pending(pid: int, number: int) -> bool:
    """Whether this signal of a process is still pending."""
    return _has(Path(f"/proc/{pid}/status"), "ShdPnd", number)


def is_handled(pid: int, number: int) -> bool:
    """Whether this signal is not pending, and no thread is in its handler, which blocks it."""
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return not is_pending(pid, number) and not any(_has(each, "SigBlk", number) for each in threads)


def _has(status: Path, mask: str, number: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return bool(int(lines[mask], 16) >> (number - 1) & 1)
    return False
