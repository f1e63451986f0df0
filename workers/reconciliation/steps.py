"""The order in which the steps of a life follow each other.

Events are folded by (generation, delivery, step), never by time alone: clocks differ, and two events may share a millisecond.
Within one delivery the steps are, in this order: the message is published or redriven, received, delayed until its ETA, and then
either scheduled for redelivery or ended; a kept dead letter may be closed afterwards. So the end of a delivery comes last, whatever
the times of its events.

An end without a delivery was made by an operator: it comes after all deliveries.
"""

from __future__ import annotations

from typing import Final

from redelivery.middleware.messages.events import TERMINAL, Outcome

from .spark.sql import quoted

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
    Outcome.UNOBSERVED,  # the last: the states of earlier versions hold the numbers of the others
)

#: The number of the first step that ends a life; all later steps end one too.
ENDS: Final = next(number for number, outcome in enumerate(STEPS) if outcome in TERMINAL)

#: Outcomes that may close a kept dead letter.
CLOSING: Final = (Outcome.DISCARDED, Outcome.PURGED)

#: How many positions one delivery has.
DELIVERY = 16
_AFTER_ALL = 2**31

#: Positions from this one on belong to ends without a delivery.
BY_NOBODY: Final = _AFTER_ALL * DELIVERY


_WORDS: Final = f"array({', '.join(map(quoted, STEPS))})"


def number(outcome: str) -> str:
    """The number of the outcome in this column, in SQL; -1 if it is none of ours."""
    return f"(CAST(coalesce(array_position({_WORDS}, {outcome}), 0) AS INT) - 1)"


def position(step: str, delivery: str) -> str:
    """A number, in SQL, that orders the events of one life: by delivery, then by step."""
    return f"(IF({step} >= {ENDS} AND {delivery} <= 0, {_AFTER_ALL}, CAST({delivery} AS BIGINT)) * {DELIVERY} + {step})"


def outcome_of(position: str) -> str:
    """The outcome at a position, in SQL; null if there is none."""
    # Spark assumes that a lookup in an array without nulls is never null, whatever its index is: hence the CASE.
    return f"CASE WHEN {position} IS NOT NULL THEN get({_WORDS}, CAST({position} % {DELIVERY} AS INT)) END"
