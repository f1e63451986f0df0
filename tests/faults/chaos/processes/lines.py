"""Files of JSON lines that other processes write while they are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tail", "read_lines"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file; none if there is no file."""
    return Tail(path).new()


class Tail:
    """The lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """The new complete lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]
