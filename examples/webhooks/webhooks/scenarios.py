"""How the receiver treats a webhook: decided by the webhook's id and a seed alone, so that a run can be repeated and foretold.

A seed and an id give a `Scenario` and the number of tries that it spoils. Nothing here is random.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PERMANENT", "Scenario", "Treatment", "Webhook", "plan", "treatment_of"]


class Scenario(StrEnum):
    """What a receiver does to a webhook."""

    ACCEPT = "accept"  # 200 at once
    BUSY = "busy"  # 503 with Retry-After, then 200
    SILENT = "silent"  # no answer until the sender gives up, then 200
    RESET = "reset"  # the connection is reset before anything was done, then 200
    REPLY_LOST = "reply_lost"  # done, but the connection is reset before the answer; then 200 without doing it again
    SLOW = "slow"  # 200, whose body drips
    GONE = "gone"  # 410, for good
    REFUSED = "refused"  # 422, for good
    BROKEN = "broken"  # 500 until somebody repairs the endpoint
    POISON = "poison"  # kills the process that prepares it, and so never arrives


#: Answers after which a webhook must not be sent again.
PERMANENT = frozenset({Scenario.GONE, Scenario.REFUSED})

#: Of 100 webhooks, how many meet each scenario.
SHARES = {
    Scenario.BUSY: 10,
    Scenario.SILENT: 4,
    Scenario.RESET: 8,
    Scenario.REPLY_LOST: 4,
    Scenario.SLOW: 5,
    Scenario.GONE: 3,
    Scenario.REFUSED: 2,
    Scenario.BROKEN: 4,
}
MAX_SPOILT = 2


@dataclass(frozen=True, slots=True)
class Treatment:
    """A scenario, and how many of the first tries it spoils (where it spoils any)."""

    scenario: Scenario
    spoilt_tries: int


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook to send."""

    id: str
    scenario: Scenario


def treatment_of(seed: int, webhook_id: str) -> Treatment:
    """What the receiver does to the webhook of this id."""
    digest = hashlib.sha256(f"{seed}:{webhook_id}".encode()).digest()
    drawn = int.from_bytes(digest[:8], "big") % 100
    spoilt = 1 + digest[8] % MAX_SPOILT
    for scenario, share in SHARES.items():
        if drawn < share:
            return Treatment(scenario, spoilt)
        drawn -= share
    return Treatment(Scenario.ACCEPT, 0)


def plan(count: int, seed: int) -> list[Webhook]:
    """The webhooks of one run: exactly one of them is poison, in the first half."""
    poison = seed % max(count // 2, 1)
    names = [f"webhook-{number:05d}" for number in range(count)]
    return [
        Webhook(name, Scenario.POISON if number == poison else treatment_of(seed, name).scenario)
        for number, name in enumerate(names)
    ]
