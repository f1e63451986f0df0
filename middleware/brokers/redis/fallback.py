"""Kombu's own receive, where ours is off or kombu is one that we do not know: the messages that it took, as we hold them.

kombu has popped the message and recorded it in `unacked` under its own tag; every transition works on that tag too. What is weaker:
a crash between its two steps loses the message, a dead worker's messages come back after kombu's visibility timeout (an hour by
default) and not within seconds, and so does a longer task that is still running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...messages.steps import sealed
from ...ports import Held
from .keys import Keys

if TYPE_CHECKING:
    from ...ports import Deliveries

__all__ = ["taken_by_kombu"]


def taken_by_kombu(message: Any, owner: Deliveries) -> Held | None:
    """The message as this worker holds it, from now on; None where it is no message of a task queue on Redis."""
    channel, queue = message.channel, getattr(message, "queue", None)
    if queue is None:
        return None
    keys, payload, tag = Keys.of(channel), message._raw, str(message.delivery_tag)  # noqa: SLF001 - the payload as it came
    list_name = keys.list_name(queue, channel._get_message_priority(payload, reverse=False))  # noqa: SLF001 - as kombu's `_put`
    held = Held(tag, queue, list_name, sealed(payload), owner.now_ms())
    held.release_credit = channel._credit(tag)  # noqa: SLF001 - our channel's
    owner.held[tag] = held
    message.held = held
    return held
