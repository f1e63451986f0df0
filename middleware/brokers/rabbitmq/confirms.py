"""Tracks which publications on a channel the broker has not answered yet, and which it has refused."""

from __future__ import annotations

from typing import Any


class Confirms:
    """The numbers of the unanswered (`open`) and the refused publications (`nacked`) on a channel, which is made to confirm."""

    def __init__(self, channel: Any = None) -> None:
        self.open: set[int] = set()
        self.nacked: set[int] = set()
        self._last = 0
        if channel is not None:
            channel.confirm_select()
            channel.events["basic_ack"].add(self._answered)
            channel.events["basic_nack"].add(self._refused)

    def published(self) -> int:
        """Count a publication; return its number."""
        self._last += 1
        self.open.add(self._last)
        return self._last

    def _answered(self, number: int, multiple: bool) -> set[int]:
        answered = {each for each in self.open if each <= number} if multiple else {number} & self.open
        self.open -= answered
        return answered

    def _refused(self, number: int, multiple: bool) -> None:
        self.nacked |= self._answered(number, multiple)
