"""The filter that chooses among dead letters, by their ids and death records."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from redelivery.errors import InputError

from ...letters import UNKNOWN, may_be, stands_plainly
from ..words.short_ids import begins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...letters import Letter

#: The wildcards of a shell pattern.
_WILD = re.compile(r"\[[^\]]*\]|[*?\[\]!]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions on dead letters. A letter passes if it has one of the values of each condition that is set.

    `tasks` are names or shell patterns. `exceptions` are class names, dotted or their last word. `fingerprints` may be shortened.
    `died_before_ms` and `died_after_ms` are the server's time; a letter without a time of death passes neither.
    """

    task_ids: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    died_before_ms: int | None = None
    died_after_ms: int | None = None

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> Self:
        """Parse what `to_dict` wrote. Raises `InputError` for anything else: a lost condition would choose more letters."""
        known = {each.name for each in fields(cls)}
        for name, value in words.items():
            if name not in known:
                msg = f"a filter has no {name!r}"
                raise InputError(msg)
            if not (_is_time(value) if name in _TIMES else _is_texts(value)) or (name == "fingerprints" and "" in value):
                msg = f"the filter's {name} is no {'time in milliseconds' if name in _TIMES else 'list of texts'}"
                raise InputError(msg)
        return cls(**{name: _SETS[name](value) if name in _SETS else value for name, value in words.items()})

    def to_dict(self) -> dict[str, Any]:
        """The conditions that are set, for JSON."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _plain(value) for name, value in found.items() if value not in (None, (), frozenset())}

    def passes(self, letter: Letter) -> bool:
        """Whether the filter chooses this dead letter."""
        if self.task_ids and not self.names(letter.task_id):
            return False
        if self.reasons and letter.known_reason not in self.reasons:
            return False
        if self.tasks and not any(fnmatch.fnmatchcase(letter.task, task) for task in self.tasks):
            return False
        if self.exceptions and not self._has_exception(str(letter.failure.get("type") or "")):
            return False
        if self.fingerprints and not str(letter.failure.get("fingerprint") or "").startswith(self.fingerprints):
            return False
        return self._is_in_time(letter.died_ms)

    def names(self, task_id: str) -> bool:
        """Whether `task_ids` has this id."""
        return task_id in self.task_ids

    @property
    def has_words(self) -> bool:
        """Whether `sieve` can exclude letters. Conditions on time alone have no words to look for."""
        return bool(self.task_ids or self._words())

    def sieve(self) -> Callable[[bytes], bool]:
        """Return a function that excludes most letters by their bytes, which is far cheaper than decoding them.

        The function returns True for each letter that passes, and for some others.
        """
        words, task_ids = self._words(), self.task_ids
        return lambda raw: may_be(raw, task_ids) and all(any(word in raw for word in some) for some in words)

    def _words(self) -> list[list[bytes]]:
        """For each condition its words: a dead letter that passes contains one of them.

        A condition is left out if JSON can write one of its words in two ways.
        """
        literals = [max(_WILD.split(each), key=len) for each in self.tasks]
        some = ([] if UNKNOWN in self.reasons else list(self.reasons), list(self.exceptions), list(self.fingerprints), literals)
        return [[each.encode() for each in words] for words in some if words and all(map(stands_plainly, words))]

    def _has_exception(self, name: str) -> bool:
        return any(name == each or name.endswith(f".{each}") for each in self.exceptions)

    def _is_in_time(self, died_ms: int | None) -> bool:
        if self.died_before_ms is not None and (died_ms is None or died_ms >= self.died_before_ms):
            return False
        return self.died_after_ms is None or (died_ms is not None and died_ms > self.died_after_ms)


class Shortened(Filter):
    """A filter for listings: `task_ids` may be beginnings of ids."""

    __slots__ = ()

    def names(self, task_id: str) -> bool:
        """Whether the id begins with one of `task_ids`."""
        return any(begins(task_id, each) for each in self.task_ids)


_TIMES = {"died_before_ms", "died_after_ms"}
_SETS: Mapping[str, Callable[[Any], Any]] = {
    "task_ids": frozenset,
    "reasons": frozenset,
    "tasks": tuple,
    "exceptions": tuple,
    "fingerprints": tuple,
}


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and value != []


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value
