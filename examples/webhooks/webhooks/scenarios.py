"""How the receiver treats a webhook. Only its id and a seed decide that, so a run can be repeated and its end is known before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PERMANENT", "Scenario", "Treatment", "Webhook", "plan", "treatment_of"]


class Scenario(StrEnum):
    """What the receiver does with a webhook."""

    ACCEPT = "accept"  # 200 at once
    BUSY = "busy"  # 503 with Retry-After, then 200
    SILENT = "silent"  # no answer until the sender gives up, then 200
    RESET = "reset"  # the connection is reset before any work, then 200
    REPLY_LOST = "reply_lost"  # done, but the connection is reset before the answer; then 200 without doing it again
    SLOW = "slow"  # 200, with a slow body
    GONE = "gone"  # 410, for good
    REFUSED = "refused"  # 422, for good
    BROKEN = "broken"  # 500 until somebody repairs the endpoint
    POISON = "poison"  # kills the process that sends it, and never arrives


#: Answers after which a webhook must not be sent again.
PERMANENT = frozenset({Scenario.GONE, Scenario.REFUSED})

#: The number of each scenario in 100 webhooks.
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
    """A scenario, and how many of the first tries it spoils, if any."""

    scenario: Scenario
    spoilt_tries: int


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook to send."""

    id: str
    scenario: Scenario


def treatment_of(seed: int, webhook_id: str) -> Treatment:
    """The treatment of the webhook with this id."""
    digest = hashlib.sha256(f"{seed}:{webhook_id}".encode()).digest()
    drawn = int.from_bytes(digest[:8], "big") % 100
    spoilt = 1 + digest[8] % MAX_SPOILT
    for scenario, share in SHARES.items():
        if drawn < share:
            return Treatment(scenario, spoilt)
        drawn -= share
    return Treatment(Scenario.ACCEPT, 0)


def plan(count: int, seed: int) -> list[Webhook]:
    """The webhooks of one run. One of them is poison, in the first half."""
    poison = seed % max(count // 2, 1)
    names = [f"webhook-{number:05d}" for number in range(count)]
    return [
        Webhook(name, Scenario.POISON if number == poison else treatment_of(seed, name).scenario)
        for number, name in enumerate(names)
    ]
