"""Which deliveries of one channel have been answered, so that many can be acknowledged in one frame.

RabbitMQ numbers the deliveries of a channel from 1 on, and `multiple` acknowledges all up to a number. Where everything up to a
number has been answered, but for what has just ended, one frame is enough: a quorum queue writes one entry into its log for it,
and not one for each. Whatever has a gap before it is acknowledged by itself.

A delivery that nobody ever answers here (a consumer without acknowledgements, say) is a gap that stays; behind it everything is
acknowledged one by one, and what is remembered of it is bounded.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Numbers that are remembered behind a gap: a prefetch window is never so wide.
MAX_BEYOND = 65_536
#: A frame with one method, basic.ack: type, channel, size, class, method, delivery tag, multiple, end.
ACK = Struct(">BHIHHQBB")


class Settled:
    """The numbers that have been answered, of one channel; for one thread."""

    def __init__(self) -> None:
        self._next = 1
        self._beyond: set[int] = set()

    def note(self, tag: int, *, multiple: bool = False) -> None:
        """This one was answered by somebody else, or needs no answer; with `multiple`, all up to it, and 0 is whatever there is."""
        if multiple:
            self._next = max(self._next, tag + 1)
            self._beyond = {each for each in self._beyond if each > tag}
        else:
            self._beyond.add(tag)
        self._advance()

    def together(self, tags: Iterable[int]) -> list[tuple[int, bool]]:
        """How to acknowledge these: each number to send, and whether it stands for all up to it. What was answered is left out."""
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
            self._beyond = set(sorted(self._beyond)[MAX_BEYOND // 2 :])  # the gap stays, so that nothing is taken for answered


def frames(channel_id: int, acknowledgements: Iterable[tuple[int, bool]]) -> bytes:
    """The acknowledgements as AMQP's frames, to be written at once."""
    return b"".join(ACK.pack(1, channel_id, 13, 60, 80, tag, multiple, 0xCE) for tag, multiple in acknowledgements)
