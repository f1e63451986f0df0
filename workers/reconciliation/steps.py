"""The order in which the steps of a life follow each other.

Events are folded by (generation, delivery, step), never by time alone: clocks differ, and two events may share a millisecond.
Within one delivery the steps are, in this order: it is published or redriven, received, put off until its ETA, and then either
handed over again or ended; and a letter that was kept may be closed afterwards. So whatever a delivery's events say of time, its
end comes last.

An end that names no delivery is an operator's, who saw no delivery: it comes after all of them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from redelivery.middleware.outcomes import TERMINAL, Outcome

__all__ = ["BY_NOBODY", "CLOSING", "DELIVERY", "ENDS", "STEPS", "number", "outcome_of", "position"]

#: All outcomes in the order of their steps; an outcome's number is its place here.
STEPS: Final = (
    Outcome.PUBLISHED,
    Outcome.REDRIVEN,
    Outcome.RECEIVED,
    Outcome.DEFERRED,
    Outcome.REDELIVERY_SCHEDULED,
    Outcome.IGNORED,
    Outcome.REVOKED,
    Outcome.CANCELLED,
    Outcome.EXPIRED,
    Outcome.SUCCEEDED,
    Outcome.DEAD_LETTERED,
    Outcome.DISCARDED,
    Outcome.PURGED,
)

#: The number of the first step that ends a life; all that follow do.
ENDS: Final = next(number for number, outcome in enumerate(STEPS) if outcome in TERMINAL)

#: Outcomes that may close a kept letter.
CLOSING: Final = (Outcome.DISCARDED, Outcome.PURGED)

#: Positions of one delivery: how far apart those of the next one are.
DELIVERY = 16
_AFTER_ALL = 2**31

#: Positions from this one on are of ends that name no delivery.
BY_NOBODY: Final = _AFTER_ALL * DELIVERY


def number(outcome: Column) -> Column:
    """The number of the outcome in this column; -1 where it is none of ours."""
    place = F.array_position(F.array(*(F.lit(str(each)) for each in STEPS)), outcome)
    return F.coalesce(place, F.lit(0)).cast("int") - 1


def position(step: Column, delivery: Column) -> Column:
    """A number that orders the events of one life: by delivery, then by step."""
    of_nobody = (step >= ENDS) & (delivery <= 0)
    return F.when(of_nobody, F.lit(_AFTER_ALL)).otherwise(delivery.cast("long")) * DELIVERY + step


def outcome_of(position: Column) -> Column:
    """The outcome at a position; null where there is none."""
    words = F.array(*(F.lit(str(each)) for each in STEPS))
    # Spark takes the lookup in an array without nulls for never null, whatever its index is: hence the question.
    return F.when(position.isNotNull(), F.get(words, (position % DELIVERY).cast("int")))
