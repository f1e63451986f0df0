"""Retry, dead-letter and delayed-consumption middleware for Celery, with books that prove where every task ended.

Two lines install it: `from redelivery import Redelivery`, and `Redelivery(app)` after the Celery app has been made.
"""

from __future__ import annotations

from redelivery import errors
from redelivery.middleware.decorator import redeliver
from redelivery.middleware.install import Redelivery
from redelivery.middleware.outcomes import Outcome, Reason
from redelivery.middleware.raised import DeadLetter, RedeliverAfter
from redelivery.settings import RedeliveryPolicy, RedeliverySettings

__all__ = [
    # install and configure
    "Redelivery",
    "RedeliveryPolicy",
    "RedeliverySettings",
    "redeliver",
    # for a task to raise
    "DeadLetter",
    "RedeliverAfter",
    # what is recorded
    "Outcome",
    "Reason",
    "errors",
]
