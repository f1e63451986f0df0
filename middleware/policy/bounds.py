"""What a publication must keep to: the bounds that follow from the policies of its queue and its task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from redelivery.settings import RedeliveryPolicy

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a publication must keep to.

    - `is_dated`: the broker's time of publication is written into the message, because a lifetime counts from it.
    - `max_length`: the most messages of the queue, None without limit; `refuses`: beyond it publications are refused.
    """

    is_dated: bool
    max_length: int | None = None
    refuses: bool = False

    @classmethod
    def of(cls, queue: RedeliveryPolicy, task: RedeliveryPolicy) -> Self | None:
        """The bounds that follow from the policy of a queue, and of a task on it; None where there are none."""
        is_dated = task.enabled and (task.max_time_to_live is not None or task.delivery_delay > 0)
        max_length = queue.max_length if queue.enabled else None
        if not is_dated and max_length is None:
            return None
        return cls(is_dated, max_length, refuses=queue.overflow == "refuse_publish")
