"""The contract: a name on which users or programs rely is not removed or changed without a failing test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.project.contract import AGREED, collected

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Lists that releases add to. Readers accept unknown names, so a new name breaks nothing, but must be agreed.
HINT = (
    "write it anew with `./dev python -m tests.project.contract` if nothing was taken away, and say in CHANGELOG.md what was added"
)


def broken(agreed: Any, found: Any, path: str = "") -> Iterator[str]:
    """The agreed entries that are missing or different, by path."""
    if isinstance(agreed, dict) and isinstance(found, dict):
        for name, value in agreed.items():
            if name in found:
                yield from broken(value, found[name], f"{path}/{name}")
            else:
                yield f"{path}/{name} is gone"
    elif isinstance(agreed, list) and isinstance(found, list) and all(isinstance(each, str) for each in [*agreed, *found]):
        yield from (f"{path}: {each} is gone" for each in agreed if each not in found)
    elif agreed != found:
        yield f"{path} was {agreed!r} and is {found!r}"


def test_nothing_that_was_agreed_has_gone() -> None:
    """Public names, commands, settings, headers, keys, events, log lines, metrics and tables have not changed."""
    assert list(broken(json.loads(AGREED.read_text()), collected())) == []


def test_what_was_added_is_agreed() -> None:
    """The agreed document has all names, so the next version must keep them."""
    assert json.loads(AGREED.read_text()) == json.loads(json.dumps(collected())), HINT


@pytest.mark.parametrize(
    ("agreed", "found", "said"),
    [
        ({"a": 1}, {}, ["/a is gone"]),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, ["/a/b was 'x' and is 'y'"]),
        (["a", "b"], ["b", "c"], [": a is gone"]),
        ({"a": 1}, {"a": 1, "b": 2}, []),
    ],
)
def test_a_break_is_seen(agreed: Any, found: Any, said: list[str]) -> None:
    """A removed or different entry is named. An added entry is not a break."""
    assert list(broken(agreed, found)) == said
