"""Groups the letters of a dead-letter queue by cause: by the failure's fingerprint, or without a fingerprint by the reason.

Memory: one row for each cause, and one number for each minute in which letters of it died.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...words.redaction import redacted
from ..walk import letters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redelivery.middleware.ports import Transport

    from ....letters import Letter

#: Milliseconds.
MINUTE = 60_000
#: The reason of the one group for causes beyond the maximum number.
OTHERS = "other causes"


@dataclass(slots=True, kw_only=True)
class Cause:
    """One cause and its newest letter as an example (`task_id`, `queue`, `message`).

    `place` is the example's place in its dead-letter queue, if known.
    """

    fingerprint: str
    reason: str
    exception: str
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    task_id: str = ""
    queue: str = ""
    place: int | None = None
    message: str = ""
    tasks: Counter[str] = field(default_factory=Counter)
    dead_letter_queues: Counter[str] = field(default_factory=Counter)

    def add(self, letter: Letter, name: str, place: int | None = None) -> None:
        """Count one more letter of this cause."""
        self.count += 1
        self.tasks[letter.task] += 1
        self.dead_letter_queues[name] += 1
        died = letter.died_ms
        if died is not None and (self.first_ms is None or died < self.first_ms):
            self.first_ms = died
        if not self.task_id or (died is not None and (self.last_ms is None or died >= self.last_ms)):
            self.last_ms = died if died is not None else self.last_ms
            self.task_id, self.message = letter.task_id, str(letter.failure.get("message") or "")
            self.queue, self.place = name, place

    def to_dict(self) -> dict[str, Any]:
        """The values for JSON, without the place, which changes when a letter leaves the queue."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "place"}


class Causes:
    """Groups letters as they are added. `redact` hides texts. `looked_at` is how many letters were added.

    Letters of more than `most` causes count as one further cause, `OTHERS`.
    """

    def __init__(self, *, redact: bool = False, most: float = math.inf) -> None:
        self._redact, self._most = redact, most
        self._found: dict[tuple[str, str], Cause] = {}
        self._minutes: dict[tuple[str, str], Counter[int]] = {}
        self.looked_at = 0

    def add(self, letter: Letter, name: str, place: int | None = None) -> None:
        """Add one letter of this dead-letter queue."""
        self.looked_at += 1
        letter = redacted(letter) if self._redact else letter
        key, reason, exception = _key(letter), letter.known_reason, str(letter.failure.get("type") or "")
        if key not in self._found and len(self._found) >= self._most:
            key, reason, exception = ("", OTHERS), OTHERS, ""
        if key not in self._found:
            self._found[key] = Cause(fingerprint=key[0], reason=reason, exception=exception)
            self._minutes[key] = Counter()
        self._found[key].add(letter, name, place)
        if letter.died_ms is not None:
            self._minutes[key][letter.died_ms // MINUTE] += 1

    def ranked(self) -> list[Cause]:
        """The causes, the most frequent first, and the newest first among equals."""
        return sorted(self._found.values(), key=lambda each: (-each.count, -(each.last_ms or 0)))

    def course(self, cause: Cause, until_ms: int, minutes: int, parts: int) -> list[int]:
        """How many letters of a cause died in each part of the last `minutes`, the oldest part first."""
        counts, first = [0] * parts, until_ms // MINUTE - minutes + 1
        for minute, count in list(self._minutes[cause.fingerprint, "" if cause.fingerprint else cause.reason].items()):
            if first <= minute < first + minutes:
                counts[(minute - first) * parts // minutes] += count
        return counts


def _key(letter: Letter) -> tuple[str, str]:
    fingerprint = str(letter.failure.get("fingerprint") or "")
    return fingerprint, "" if fingerprint else letter.known_reason


def causes(transport: Transport, names: Iterable[str], *, redact: bool = False) -> list[Cause]:
    """Return the causes in these dead-letter queues, in the order of `Causes.ranked`."""
    found = Causes(redact=redact)
    for name in names:
        for letter in letters_of(transport, name):
            found.add(letter, name)
    return found.ranked()
