"""Address patterns in Artemis's wildcard syntax: which rows of a table apply to a queue or a task, and which of them wins.

An address is words split by `.`. In a pattern `*` matches exactly one word and `#` any number of words, also none; both match whole
words only. If several patterns match an address, they are merged setting by setting, and the more specific wins:

1. a pattern without wildcards wins over a pattern with `*`, which wins over a pattern with `#`;
2. then more literal words;
3. then the earlier literal word;
4. then the order written: the later row wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redelivery.errors import ConfigurationError

ONE_WORD = "*"
ANY_WORDS = "#"


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A pattern of the settings. Raises `ConfigurationError` if the text is not a pattern."""

    text: str
    words: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _is_text(self.text):
            msg = f"{self.text!r} is not a pattern: write a name, or words split by '.' in which '*' is one word and '#' any number"
            raise ConfigurationError(msg)
        words = tuple(self.text.split("."))
        for word in words:
            if len(word) > 1 and (ONE_WORD in word or ANY_WORDS in word):
                plain = word.strip(ONE_WORD + ANY_WORDS) or "orders"
                msg = (
                    f"pattern {self.text!r}: '*' and '#' stand for whole words between dots; write '{plain}.*', '{plain}.#' or '#'"
                )
                raise ConfigurationError(msg)
        object.__setattr__(self, "words", words)

    def matches(self, address: str) -> bool:
        """Whether the pattern matches this queue or task."""
        return _matches(self.words, address.split("."))

    @property
    def specificity(self) -> tuple[int, int, tuple[int, ...]]:
        """The greater, the more specific. Between equal values the order written decides."""
        kind = 0 if ANY_WORDS in self.words else 1 if ONE_WORD in self.words else 2
        literals = [place for place, word in enumerate(self.words) if word not in {ONE_WORD, ANY_WORDS}]
        return kind, len(literals), tuple(-place for place in literals)


def _is_text(written: object) -> bool:
    return isinstance(written, str) and bool(written)


def _matches(pattern: tuple[str, ...], words: list[str]) -> bool:
    """Match with backtracking to the last `#` only: at most len(pattern) x len(words) steps."""
    at = seen = 0
    last_any, resume = -1, 0
    while seen < len(words):
        if at < len(pattern) and pattern[at] == ANY_WORDS:
            last_any, resume = at, seen
            at += 1
        elif at < len(pattern) and pattern[at] in {ONE_WORD, words[seen]}:
            at, seen = at + 1, seen + 1
        elif last_any >= 0:
            resume += 1
            at, seen = last_any + 1, resume
        else:
            return False
    return all(word == ANY_WORDS for word in pattern[at:])
