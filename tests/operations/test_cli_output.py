"""What the commands print: texts, durations, times and tables, whatever they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.errors import InputError
from redelivery.workers.cli.output import moment, safe, seconds, short, span, table
from tests.support.desk import harmless


@given(st.text())
def test_safe_text_is_one_harmless_line(text: str) -> None:
    """Whatever it was; plain text stays as it is."""
    shown = safe(text)
    assert harmless(shown)
    assert len(shown.splitlines()) <= 1
    if text.isascii() and text.isprintable():
        assert shown == text


@given(st.text(), st.integers(1, 20))
def test_short_text_is_no_wider_than_asked(text: str, width: int) -> None:
    """In characters."""
    assert len(short(text, width)) <= width


def test_durations_are_written_and_read_by_their_units() -> None:
    """Two units at the most; a fraction below ten seconds."""
    spans = [
        (0, "0s"),
        (0.25, "0.25s"),
        (9.99, "9.99s"),
        (10, "10s"),
        (59.6, "1m"),
        (125, "2m 5s"),
        (3600, "1h"),
        (273_845, "3d 4h"),
        (-90, "-1m 30s"),
    ]
    assert [span(value) for value, _ in spans] == [text for _, text in spans]
    assert [seconds(text) for text in ("90", "90s", "1.5m", "2h", "3d", "1w", "250ms")] == [
        90,
        90,
        90,
        7200,
        259_200,
        604_800,
        0.25,
    ]
    for wrong in ("", "s", "-1s", "1y", "1h30m", "inf", "nan"):
        with pytest.raises(InputError, match="is no duration"):
            seconds(wrong)


def test_times_out_of_range_are_no_times() -> None:
    """A letter may say that it died in the year 300,000."""
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert [moment(each) for each in (None, -1, 10**18, float("nan"))] == ["-"] * 4


def test_a_table_without_rows_is_its_heading() -> None:
    """Numbers stand to the right."""
    assert table([], ("a", "b")) == "a  b"
    assert table([("x", 1), ("y", 100)], ("name", "n")) == "name    n\nx       1\ny     100"
