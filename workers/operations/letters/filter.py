"""The filter that chooses among dead letters, by what stands in their death records."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...letters import Letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which letters: all conditions must hold; of the values of one condition, any. No condition: all letters.

    `tasks` are names or shell patterns. `exceptions` are class names, dotted or their last word. `fingerprints` may be shortened.
    `died_before_ms` and `died_after_ms` are the server's time; a letter that does not say when it died passes neither.
    """

    task_ids: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    died_before_ms: int | None = None
    died_after_ms: int | None = None

    def passes(self, letter: Letter) -> bool:
        """Whether the letter is meant."""
        if self.task_ids and letter.task_id not in self.task_ids:
            return False
        if self.reasons and letter.reason not in self.reasons:
            return False
        if self.tasks and not any(fnmatch.fnmatchcase(letter.task, task) for task in self.tasks):
            return False
        if self.exceptions and not self._has_exception(str(letter.failure.get("type") or "")):
            return False
        if self.fingerprints and not str(letter.failure.get("fingerprint") or "").startswith(self.fingerprints):
            return False
        return self._is_in_time(letter.died_ms)

    def _has_exception(self, name: str) -> bool:
        return any(name == each or name.endswith(f".{each}") for each in self.exceptions)

    def _is_in_time(self, died_ms: int | None) -> bool:
        if self.died_before_ms is not None and (died_ms is None or died_ms >= self.died_before_ms):
            return False
        return self.died_after_ms is None or (died_ms is not None and died_ms > self.died_after_ms)
