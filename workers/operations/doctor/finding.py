"""What the doctor finds, and what a check is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from redelivery.display import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...ports import NotKnown
    from .seen import Seen

#: `danger`: messages are lost, run twice or not at all. `warning`: a guarantee is weaker than it looks, or will be soon.
Severity = Literal["danger", "warning"]
#: What a finding may be called; `docs/doctor.md` has a row for each.
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
#: Names that a sentence lists.
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that will hurt: what it is, why it hurts, and what to do (a command or a setting to paste)."""

    name: Name
    severity: Severity
    what: str
    why: str
    fix: str


class Check(Protocol):
    """One check: a pure function of what was seen. For an answer that did not come it yields nothing."""

    def __call__(self, seen: Seen) -> Iterator[Finding | NotKnown]:
        """What is wrong, and what is not known."""
        ...


def named(names: list[str] | tuple[str, ...]) -> str:
    """These names in a sentence: the first, and how many more there are."""
    shown = ", ".join(map(safe, names[:MAX_NAMED]))
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"
