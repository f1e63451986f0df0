"""The types of the doctor's findings and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from redelivery.display import safe

#: `danger`: messages are lost, or run twice or not at all. `warning`: a guarantee is weaker than it looks, or will be soon.
Severity = Literal["danger", "warning"]
#: The names of findings; `docs/doctor.md` has a row for each.
Name = Literal[
    "settings.refused",
    "app.always_eager",
    "app.acks_early",
    "task.acks_early",
    "task.unobserved",
    "policy.matches_nothing",
    "policy.not_for_tasks",
    "retention.no_archive",
    "results.expire_early",
    "prefetch.unlimited",
    "broker.evicts",
    "broker.forgets",
    "broker.save_failing",
    "broker.filling",
    "broker.replica",
    "broker.replicas_missing",
    "broker.alarm",
    "broker.policy_bypasses",
    "broker.bypasses",
    "publications.unconfirmed",
    "publications.transient",
    "queue.transient",
    "queue.taken",
    "queue.unconsumed",
    "queue.mixed",
    "visibility_timeout.short",
    "dispatcher.none",
    "delays.overdue",
    "dead_letter_queue.missing",
    "dead_letter_queue.taken",
    "dead_letter_queue.unread",
    "outcome_log.not_exported",
    "outcome_log.filling",
    "outcome_log.lost",
    "clock.worker",
    "clock.producer",
    "versions.mixed",
]
NAMES: tuple[str, ...] = get_args(Name)
#: The maximum number of names in a sentence.
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: what it is, why it matters, and what to do (a command or a setting to paste)."""

    name: Name
    severity: Severity
    what: str
    why: str
    fix: str


def named(names: list[str] | tuple[str, ...]) -> str:
    """Return the first names for a sentence, and how many more there are."""
    shown = ", ".join(map(safe, names[:MAX_NAMED]))
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"
