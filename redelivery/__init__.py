"""Retry, dead-letter and delayed-consumption middleware for Celery, with books that prove how every task ended.

Two lines install it: `from redelivery import Redelivery`, and `Redelivery(app)` after the Celery app has been made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.lazily import lazily

if TYPE_CHECKING:
    from redelivery import errors
    from redelivery.middleware.install import Redelivery
    from redelivery.middleware.messages.events import Outcome, Reason
    from redelivery.middleware.policy.decorator import redeliver
    from redelivery.middleware.policy.task_exceptions import DeadLetter, RedeliverAfter
    from redelivery.middleware.transitions.letter import Letter
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
    # for a dead-letter handler
    "Letter",
    # what is recorded
    "Outcome",
    "Reason",
    "errors",
]

# Every run of pytest loads the plugin `redelivery.testing` if this package is installed: it must not import Celery for a suite that
# uses no worker. Type checkers know the names from the imports above, and refuse others.
if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {
            "Redelivery": "redelivery.middleware.install",
            "RedeliveryPolicy": "redelivery.settings",
            "RedeliverySettings": "redelivery.settings",
            "redeliver": "redelivery.middleware.policy.decorator",
            "DeadLetter": "redelivery.middleware.policy.task_exceptions",
            "Letter": "redelivery.middleware.transitions.letter",
            "RedeliverAfter": "redelivery.middleware.policy.task_exceptions",
            "Outcome": "redelivery.middleware.messages.events",
            "Reason": "redelivery.middleware.messages.events",
            "errors": "redelivery.errors",
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
