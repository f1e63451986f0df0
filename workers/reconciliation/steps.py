"""The order of the steps of a life.

Events are ordered by (generation, delivery, step), never by time alone: clocks differ, and two events may share a millisecond. In
one delivery a message is published or redriven, then received, then delayed until its ETA, and then either scheduled for redelivery
or ended. A kept dead letter may be closed afterwards. So the end of a delivery comes last, whatever the times of its events.

An end without a delivery comes from an operator, and follows all deliveries.
"""

from __future__ import annotations

from typing import Final

from redelivery.middleware.messages.events import TERMINAL, Outcome

from .spark.sql import quoted

#: All outcomes in the order of their steps. The number of an outcome is its index.
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
    Outcome.UNOBSERVED,  # the last: the states of earlier versions hold the numbers of the others
)

#: The number of the first step that ends a life. All later steps end a life, too.
ENDS: Final = next(number for number, outcome in enumerate(STEPS) if outcome in TERMINAL)

#: Outcomes that may close a kept dead letter.
CLOSING: Final = (Outcome.DISCARDED, Outcome.PURGED)

#: The number of positions of one delivery.
DELIVERY = 16
_AFTER_ALL = 2**31

#: The first position of ends without a delivery.
BY_NOBODY: Final = _AFTER_ALL * DELIVERY


_WORDS: Final = f"array({', '.join(map(quoted, STEPS))})"


def number(outcome: str) -> str:
    """The number of the outcome in this column, in SQL; -1 for an unknown outcome."""
    return f"(CAST(coalesce(array_position({_WORDS}, {outcome}), 0) AS INT) - 1)"


def position(step: str, delivery: str) -> str:
    """A number that orders the events of one life by delivery and step, in SQL."""
    return f"(IF({step} >= {ENDS} AND {delivery} <= 0, {_AFTER_ALL}, CAST({delivery} AS BIGINT)) * {DELIVERY} + {step})"


def outcome_of(position: str) -> str:
    """The outcome at a position, in SQL; null if there is none."""
    # The CASE is needed: Spark assumes that a lookup in an array without nulls is never null, even if the index is null.
    return f"CASE WHEN {position} IS NOT NULL THEN get({_WORDS}, CAST({position} % {DELIVERY} AS INT)) END"
