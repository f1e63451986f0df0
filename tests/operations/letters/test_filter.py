"""The filter of dead letters: what it chooses, and that its fast pre-check never rejects a dead letter that it would choose."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.workers.letters import Letter
from redelivery.workers.operations.letters.filter import Filter
from tests.support.desk import task_message

WORDS = st.one_of(
    st.sampled_from(
        ["shop.pay", "shop.Refused", "exhausted", "0a1b2c", "é", 'say "no"', "a\\b", "raw-1", "a b", "*", "[x]", "sh?p", ""]
    ),
    st.text(max_size=6),
)


def letter_of(task_id: str, task: str, reason: str, exception: str, fingerprint: str, *, is_ascii: bool) -> bytes:
    """A dead letter with these texts, as any client may have written it."""
    header: dict[str, Any] = {
        "v": 1,
        "deaths": [{"queue": "orders", "reason": reason, "count": 1, "first": 5, "last": 5}],
        "failure": {"type": exception, "message": "no", "fingerprint": fingerprint},
    }
    return json.dumps(task_message(task_id or "x", task, redelivery=header), ensure_ascii=is_ascii).encode("utf-8", "replace")


@given(
    letter=st.tuples(WORDS, WORDS, WORDS, WORDS, WORDS),
    is_ascii=st.booleans(),
    asked=st.lists(st.tuples(st.sampled_from(["task_ids", "tasks", "reasons", "exceptions", "fingerprints"]), WORDS), max_size=4),
    shares=st.booleans(),
)
def test_the_sieve_keeps_back_no_letter_that_passes(
    letter: tuple[str, str, str, str, str], is_ascii: bool, asked: list[tuple[str, str]], shares: bool
) -> None:
    """For any filter and any encoding; a dead letter passes both if the filter asks for its own texts."""
    raw = letter_of(*letter, is_ascii=is_ascii)
    read = Letter.of(raw)
    words: dict[str, list[str]] = {}
    own = dict(zip(("task_ids", "tasks", "reasons", "exceptions", "fingerprints"), letter, strict=True))
    for name, word in asked:
        words.setdefault(name, []).append(own[name][:-1] + "*" if shares and name == "tasks" else own[name] if shares else word)
    chosen = Filter(
        task_ids=frozenset(words.get("task_ids", ())),
        tasks=tuple(words.get("tasks", ())),
        reasons=frozenset(words.get("reasons", ())),
        exceptions=tuple(words.get("exceptions", ())),
        fingerprints=tuple(words.get("fingerprints", ())),
    )
    if chosen.passes(read):
        assert chosen.sieve()(raw)


@pytest.mark.parametrize(
    ("chosen", "passes"),
    [
        (Filter(tasks=("shop.*",)), True),
        (Filter(tasks=("*.mail", "shop.*")), True),
        (Filter(tasks=("mail.*",)), False),
        (Filter(tasks=("*[x]*",)), True),
        (Filter(reasons=frozenset({"expired"})), False),
        (Filter(exceptions=("Refused",)), True),
        (Filter(exceptions=("Late",)), False),
        (Filter(fingerprints=("0a",)), True),
        (Filter(fingerprints=("0x",), tasks=("shop.*",)), False),
        (Filter(died_before_ms=1), True),
    ],
)
def test_the_sieve_keeps_back_what_lacks_a_word(chosen: Filter, *, passes: bool) -> None:
    """All conditions must hold, each with one of its values; the pre-check knows nothing about ages."""
    raw = letter_of("task-1", "shop.pay", "exhausted", "shop.Refused", "0a1b2c", is_ascii=True)
    assert chosen.sieve()(raw) is passes


def test_ages_alone_have_no_words() -> None:
    """A pattern without a letter has none either: then everything passes the pre-check."""
    assert [each.has_words for each in (Filter(), Filter(died_after_ms=1), Filter(tasks=("*",)))] == [False] * 3
    assert all(
        each.has_words for each in (Filter(task_ids=frozenset({"a"})), Filter(tasks=("a*",)), Filter(reasons=frozenset({"x"})))
    )
