"""The causes of a dead-letter queue: its letters grouped by the fingerprint of what they died of.

Enters: one dead-letter queue or all. Leaves: a row for each cause, the most frequent first, with an example. Nothing is changed.
Memory: one row for each cause; what has no fingerprint is grouped by its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..redaction import redacted
from .walk import letters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...letters import Letter
    from ...ports import Transitions


@dataclass(slots=True, kw_only=True)
class Cause:
    """One cause: how many letters, since when, and the newest of them as an example (`task_id`, `message`)."""

    fingerprint: str
    reason: str
    exception: str
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    task_id: str = ""
    message: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    dead_letter_queues: Counter[str] = field(default_factory=Counter)

    def add(self, letter: Letter, name: str) -> None:
        """One more letter of it."""
        self.count += 1
        self.tasks[letter.task] += 1
        self.dead_letter_queues[name] += 1
        died = letter.died_ms
        if died is not None and (self.first_ms is None or died < self.first_ms):
            self.first_ms = died
        if not self.task_id or (died is not None and (self.last_ms is None or died >= self.last_ms)):
            self.last_ms = died if died is not None else self.last_ms
            self.task_id, self.message = letter.task_id, str(letter.failure.get("message") or "")

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in facts.items()}


def causes(transport: Transitions, names: Iterable[str], *, redact: bool = False) -> list[Cause]:
    """The causes in these dead-letter queues, the most frequent first, the newest first among equals; `redact` hides texts."""
    found: dict[tuple[str, str], Cause] = {}
    for name in names:
        for each in letters_of(transport, name):
            letter = redacted(each) if redact else each
            fingerprint, reason = str(letter.failure.get("fingerprint") or ""), letter.reason or "unknown"
            key = (fingerprint, "" if fingerprint else reason)
            if key not in found:
                found[key] = Cause(fingerprint=fingerprint, reason=reason, exception=str(letter.failure.get("type") or ""))
            found[key].add(letter, name)
    return sorted(found.values(), key=lambda each: (-each.count, -(each.last_ms or 0)))
