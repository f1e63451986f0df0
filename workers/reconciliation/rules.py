"""The nine verdicts: the rule of each in one line, and which of them are discrepancies."""

from __future__ import annotations

from typing import Final

#: The verdicts and their rules, in the order in which they are tried.
RULES: Final = {
    "orphaned": "has events, but no published, redriven or received event",
    "duplicated": "ended more than once (a purge of its dead letter does not count)",
    "resurrected": "something happened to it after its end",
    "phantom_dead_letter": "a dead-letter queue holds it, but its last event is not dead_lettered",
    "missing_dead_letter": "its last event is dead_lettered, but no dead-letter queue holds it and it was not redriven",
    "stuck": "waits in the broker, and is overdue by more than the grace",
    "in_flight": "has not ended: it is in the broker, or its last event is younger than the grace",
    "lost": "has not ended, is nowhere in the broker, and is older than the grace",
    "balanced": "opened once, ended once",
}
VERDICTS: Final = tuple(RULES)

#: The books do not balance if a life has one of these verdicts.
DISCREPANCIES: Final = tuple(name for name in VERDICTS if name not in {"in_flight", "balanced"})

#: The order in listings: tasks that are gone, that ran twice, that wait, and that are only unknown.
WORST_FIRST: Final = (
    "lost",
    "missing_dead_letter",
    "duplicated",
    "resurrected",
    "stuck",
    "phantom_dead_letter",
    "orphaned",
    "in_flight",
    "balanced",
)
