"""Tracks which deliveries of a channel have been answered, so that many can be acknowledged in one frame.

RabbitMQ numbers the deliveries of a channel from 1 on, and `multiple` acknowledges all up to a number. So one frame is enough for
all ended deliveries that have no unanswered delivery before them. A quorum queue then writes one entry into its log, instead of one
for each delivery. A delivery behind an unanswered one gets a frame of its own.

A delivery that is never answered leaves a gap: all later deliveries are acknowledged one by one.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The most numbers that are remembered behind a gap: more than any prefetch window holds.
MAX_BEYOND = 65_536
#: A frame with the method basic.ack: type, channel, size, class, method, delivery tag, multiple, end.
ACK = Struct(">BHIHHQBB")


class Settled:
    """The numbers of one channel's answered deliveries; for one thread."""

    def __init__(self) -> None:
        self._next = 1
        self._beyond: set[int] = set()

    def note(self, tag: int, *, multiple: bool = False) -> None:
        """Note that this delivery was answered elsewhere, or needs no answer; with `multiple`, all deliveries up to it."""
        if multiple:
            self._next = max(self._next, tag + 1)
            self._beyond = {each for each in self._beyond if each > tag}
        else:
            self._beyond.add(tag)
        self._advance()

    def together(self, tags: Iterable[int]) -> list[tuple[int, bool]]:
        """How to acknowledge these deliveries: the numbers to send, each with `multiple`. Answered deliveries are left out."""
        ended = {tag for tag in tags if tag >= self._next and tag not in self._beyond}
        self._beyond |= ended
        self._advance()
        run = [tag for tag in ended if tag < self._next]
        apart = sorted(tag for tag in ended if tag >= self._next)
        return ([(max(run), len(run) > 1)] if run else []) + [(tag, False) for tag in apart]

    def _advance(self) -> None:
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1
        if len(self._beyond) > MAX_BEYOND:
            self._beyond = set(sorted(self._beyond)[MAX_BEYOND // 2 :])  # the gap stays: nothing unanswered counts as answered


def frames(channel_id: int, acknowledgements: Iterable[tuple[int, bool]]) -> bytes:
    """The acknowledgements as AMQP frames, for one write."""
    return b"".join(ACK.pack(1, channel_id, 13, 60, 80, tag, multiple, 0xCE) for tag, multiple in acknowledgements)
