"""Patterns: what they match, and which of two is stronger."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import ConfigurationError
from redelivery.settings import AddressPattern

WORDS = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.lists(WORDS, min_size=1, max_size=7).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "c", "*", "#"]), min_size=1, max_size=6).map(".".join)


@pytest.mark.parametrize(
    ("pattern", "address", "matches"),
    [
        ("#", "news", True),
        ("#", "news.europe.sport", True),
        ("news.#", "news", True),
        ("news.#", "news.europe.sport", True),
        ("news.#", "newspaper", False),
        ("news.*", "news", False),
        ("news.*", "news.europe", True),
        ("news.*", "news.europe.sport", False),
        ("news.*.sport", "news.europe.sport", True),
        ("news.*.sport", "news.europe.politics", False),
        ("#.sport", "sport", True),
        ("#.sport", "news.sport.sport", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b.#.c", "a.b.x.b.c", True),
        ("a.#.b.#.c", "a.c.b", False),
        ("news", "news", True),
        ("news", "News", False),
        ("*", "news", True),
        ("*.#", "news", True),
        ("#.#", "news", True),
        ("a.b", "a", False),
    ],
)
def test_words_are_matched_as_artemis_does(pattern: str, address: str, matches: bool) -> None:
    """`*` is one word, `#` is any number of words (also none), and other words are literal."""
    assert AddressPattern(pattern).matches(address) is matches


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ("#", "*.*"),
        ("#", "a.b"),
        ("a.#", "a.*"),
        ("a.b.#", "a.*"),
        ("a.*", "a.b"),
        ("*.*", "a.*"),
        ("#", "a.#"),
        ("a.#", "a.b.#"),
        ("*.b", "a.*"),
        ("#.b", "a.#"),
        ("*.b.c", "a.*.c"),
    ],
)
def test_the_more_specific_pattern_is_stronger(weaker: str, stronger: str) -> None:
    """Exact beats `*`, and `*` beats `#`; then more literal words win; then the earlier literal word."""
    assert AddressPattern(weaker).specificity < AddressPattern(stronger).specificity


@pytest.mark.parametrize(("one", "other"), [("a.#", "a.#.#"), ("a.*.#", "a.#.*"), ("*", "*.*")])
def test_patterns_that_say_as_much_are_tied(one: str, other: str) -> None:
    """If no rule decides, the order in the settings does."""
    assert AddressPattern(one).specificity == AddressPattern(other).specificity


@pytest.mark.parametrize("text", ["orders*", "#orders", "a.b*", "**", "a.##"])
def test_wildcards_inside_words_are_refused(text: str) -> None:
    """A wildcard stands for a whole word. For a shell pattern, the error says what to write instead."""
    with pytest.raises(ConfigurationError, match="stand for whole words"):
        AddressPattern(text)


@pytest.mark.parametrize("written", ["", 5, None])
def test_what_is_no_text_is_no_pattern(written: str) -> None:
    """An empty or missing pattern is refused."""
    with pytest.raises(ConfigurationError, match="is not a pattern"):
        AddressPattern(written)


def _oracle(pattern: str, address: str) -> bool:
    """The definition, word by word."""
    wanted, words = pattern.split("."), address.split(".")

    @cache
    def agree(at: int, seen: int) -> bool:
        if at == len(wanted):
            return seen == len(words)
        if wanted[at] == "#":
            return any(agree(at + 1, further) for further in range(seen, len(words) + 1))
        return seen < len(words) and wanted[at] in {"*", words[seen]} and agree(at + 1, seen + 1)

    return agree(0, 0)


@given(pattern=PATTERNS, address=ADDRESSES)
def test_matching_agrees_with_its_definition(pattern: str, address: str) -> None:
    """The fast function always agrees with the recursive definition."""
    assert AddressPattern(pattern).matches(address) is _oracle(pattern, address)


def test_no_pattern_takes_long() -> None:
    """Many `#` and a long name that does not match do not take exponential time."""
    pattern = AddressPattern(".".join(["#", "a"] * 30 + ["b"]))
    began = time.perf_counter()
    assert not pattern.matches(".".join(["a"] * 300))
    assert time.perf_counter() - began < 2
