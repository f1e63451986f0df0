"""Progress on stderr: one changing line on a terminal, otherwise a line every few seconds. Nothing in the first second."""

from __future__ import annotations

import sys
import time
from typing import Self

import click

#: Seconds before the first line; between two lines on a terminal; between two lines elsewhere.
FIRST, AGAIN, ELSEWHERE = 1.0, 0.2, 5.0


class Progress:
    """Shows how far a command is."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + FIRST
        self._said = False
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if self._said and self._is_terminal:
            click.echo(err=True)
        if isinstance(exc, KeyboardInterrupt) and self._last:
            click.echo(f"interrupted: {self._last}", err=True)

    def say(self, text: str) -> None:
        """Show this text if it is time for a new line. If the command is interrupted, its last text is shown again."""
        self._last = text
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (AGAIN if self._is_terminal else ELSEWHERE)
        self._said = True
        click.echo(f"\r\x1b[K{text}" if self._is_terminal else text, err=True, nl=not self._is_terminal)
