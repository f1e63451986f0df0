"""Cancels many messages in the delay store.

A dead letter that waits there for its dead-letter queue or its handler stays, and is counted in `left`. Limit: a message that is
delayed while the cancel runs may be cancelled, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from redelivery.errors import InputError
from redelivery.middleware.brokers.errors import ANY_BROKER_ERRORS
from redelivery.middleware.ports import Answer

from ...brokers.broker import broker_of
from ...letters import Letter
from ..letters.walk import ALL, Evenly, Walked, WalkOptions
from .changes import cancel, changeable

if TYPE_CHECKING:
    from redelivery.middleware.runtime import Runtime

    from ...ports import Delayed
    from ..letters.filter import Filter

#: Why a dead letter stays in the delay store.
DEAD = "it is dead, and waits for its dead-letter queue or its handler"


@dataclass(slots=True, kw_only=True)
class Cancelled(Walked):
    """The result of a bulk cancel: `moved` messages were cancelled, `gone` ones became due meanwhile."""

    kind: ClassVar[str] = "cancel"
    things: ClassVar[str] = "messages"
    went: ClassVar[str] = "had been cancelled"


def cancel_waiting(
    runtime: Runtime,
    queue: str,
    chosen: Filter,
    how: WalkOptions = ALL,
    *,
    actor: str | None = None,
) -> Cancelled:
    """Cancel messages for this queue (empty: any queue) that pass the filter.

    Raises `BrokerError`; its text says how many messages had been cancelled.
    """
    store = how.delayed or broker_of(runtime.transport).delayed
    result = Cancelled(dead_letter_queue=queue, dry_run=how.dry_run)
    result.total = sum(count for name, count in store.totals().items() if not queue or name == queue)
    evenly = Evenly(None if how.dry_run else how.rate, how.sleep)
    try:
        how.on_progress(result)
        for page in store.pages(queue or None):
            for each in page:
                if result.is_full(how.limit):
                    return result
                if _is_chosen(each, chosen, result, how):
                    evenly.wait(1)
                    answer = Answer.DONE if how.dry_run else cancel(runtime, each, actor=actor, store=store)
                    result.moved += answer is Answer.DONE
                    result.gone += answer is not Answer.DONE
                how.on_progress(result)
    except ANY_BROKER_ERRORS as exc:
        raise result.cut_short(exc) from exc
    return result


def _is_chosen(each: Delayed, chosen: Filter, result: Cancelled, how: WalkOptions) -> bool:
    result.looked_at += 1
    letter = Letter.of(each.contents.raw)
    if not chosen.passes(letter):
        return False
    result.matched += 1
    how.on_chosen(letter)
    try:
        changeable(each)
    except InputError:
        result.left[DEAD] += 1
        return False
    return True
