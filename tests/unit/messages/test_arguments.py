"""The text of a task's arguments equals Celery's, for all arguments for which redelivery writes it."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st

from redelivery.middleware.messages.arguments import text_of_arguments

TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["'", '"', "\\", "\n", "é", "\ud800"]))
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
LISTS = st.lists(VALUES, max_size=5)
ARGUMENTS = st.one_of(LISTS, LISTS.map(tuple), st.dictionaries(TEXTS, VALUES, max_size=5))


@given(ARGUMENTS, st.one_of(st.none(), st.integers(1, 60)))
def test_the_text_is_celerys(arguments: Any, limit: int | None) -> None:
    """For any values, and wherever Celery would cut the text."""
    text = text_of_arguments(arguments, limit)
    assert text in {None, saferepr(arguments, limit)}


@pytest.mark.parametrize("arguments", [(), (7,), ["order-17", 2.5, None, True], {}, {"order": 17, "note": "paid, twice"}])
def test_ordinary_arguments_have_a_text(arguments: Any) -> None:
    """Without it, Celery writes the text, which takes longer."""
    assert text_of_arguments(arguments, 1024) == saferepr(arguments, 1024)


class Named(str):
    """A text with a `repr` of its own."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "secret"


NESTED, TOO_LONG, NO_LIST = ([1],), ("x" * 1023,), "text"


@pytest.mark.parametrize("arguments", [NESTED, {"a": {}}, (b"x",), (object(),), ("it's",), {"a": Named("x")}, TOO_LONG, NO_LIST])
def test_other_arguments_are_left_to_celery(arguments: Any) -> None:
    """Nested or long arguments, bytes, objects, subclasses, and anything that is not a list or a dict."""
    assert text_of_arguments(arguments, 1024) is None
