"""The output of the commands: texts, durations, times and tables, for any values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.display import safe
from redelivery.errors import InputError
from redelivery.workers.cli.terminal.output import Column, short, table
from redelivery.workers.cli.terminal.screen import coloured
from redelivery.workers.operations.words.numbers import moment, seconds, span
from tests.support.desk import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@given(st.text())
def test_safe_text_is_one_harmless_line(text: str) -> None:
    """This holds for any text; plain text is unchanged."""
    shown = safe(text)
    assert harmless(shown)
    assert len(shown.splitlines()) <= 1
    if text.isascii() and text.isprintable():
        assert shown == text


@given(st.text(), st.integers(1, 20))
def test_short_text_is_no_wider_than_asked(text: str, width: int) -> None:
    """The width is counted in characters."""
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
        with pytest.raises(InputError, match="is not a duration"):
            seconds(wrong)


def test_times_out_of_range_are_no_times() -> None:
    """A dead letter may claim that it died in the year 300,000."""
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert [moment(each) for each in (None, -1, 10**18, float("nan"))] == ["-"] * 4


ROWS = [
    ("3f2a9c1e-0000-4000-8000-000000000001", "shop.payments.charge_card", "exhausted", 3, "ValueError: the card was refused"),
    ("77b0d6aa-0000-4000-8000-000000000002", "shop.mail", "operator", 11, "-"),
]
COLUMNS = (
    Column("task id", is_id=True),
    Column("task", 2, 14, keeps_end=True),
    Column("reason", 1, is_coloured=True, leaves=2),
    Column("attempts", leaves=1),
    Column("exception", 3, 12),
)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has stdout be a terminal with so many columns."""

    def of(columns: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))

    return of


def shown(rows: Sequence[Sequence[object]] = ROWS, columns: Sequence[Column | str] = COLUMNS) -> list[str]:
    """The table without its colours."""
    return click.unstyle(table(rows, columns)).splitlines()


def test_a_table_that_is_piped_is_whole_and_separated_by_tabs() -> None:
    """Headings first; no padding, no colour."""
    assert table([], ("a", "b")) == "a\tb"
    assert shown()[1] == (
        "3f2a9c1e-0000-4000-8000-000000000001\tshop.payments.charge_card\texhausted\t3\tValueError: the card was refused"
    )


def test_a_table_on_a_terminal_is_aligned(terminal: Callable[[int], None]) -> None:
    """Numbers are right-aligned; task ids are cut to as much as tells them apart."""
    terminal(200)
    assert shown([("x", 1), ("y", 100)], ("name", "n")) == ["name    n", "x       1", "y     100"]
    assert [line.split()[0] for line in shown()] == ["task", "3f2a9c1e", "77b0d6aa"]
    alike = [(f"3f2a9c1e-0{number}00-4000-8000-000000000001",) for number in (1, 2)]
    assert shown(alike, COLUMNS[:1])[1:] == ["3f2a9c1e-01", "3f2a9c1e-02"]
    assert shown([("order-2026-11-24",), ("order-2026-11-25",)], COLUMNS[:1])[1:] == ["order-2026-11-24", "order-2026-11-25"]


def test_a_long_task_id_leaves_room_for_the_other_columns(terminal: Callable[[int], None]) -> None:
    """Ids may have any length: that of unreadable bytes has 44 characters. They keep what tells them apart, up to half a screen."""
    raw, order = f"raw-{'5' * 40}", "order-of-customer-2026-11-24-000"
    terminal(80)
    assert [line.split()[0] for line in shown([(raw, *ROWS[0][1:]), *ROWS])[1:]] == [raw[:26], "3f2a9c1e", "77b0d6aa"]
    assert shown([(f"{order}1",), (f"{order}2",)], COLUMNS[:1])[1:] == [f"{order}1", f"{order}2"]
    for width in (40, 80, 200):
        terminal(width)
        lines = shown([(f"{'i' * 5000}{number}", *row[1:]) for number, row in enumerate(ROWS)])
        assert max(map(len, lines)) <= width, lines
        assert "exc" in lines[0]


@pytest.mark.parametrize("width", range(26, 120))
def test_a_table_is_never_wider_than_the_terminal(terminal: Callable[[int], None], width: int) -> None:
    """Columns are narrowed in a fixed order, and left out if even that is not enough."""
    terminal(width)
    assert max(map(len, shown())) <= width


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (90, "3f2a9c1e  shop.payments.charge_card  exhausted         3  ValueError: the card was refused"),
        (80, "3f2a9c1e  shop.payments.charge_card  exhausted         3  ValueError: the card…"),
        (70, "3f2a9c1e  shop.payments.charge_card  exhausted         3  ValueError:…"),
        (60, "3f2a9c1e  …ts.charge_card  exhausted         3  ValueError:…"),
        (58, "3f2a9c1e  …s.charge_card  exhaust…         3  ValueError:…"),
    ],
)
def test_columns_give_room_up_in_turn(terminal: Callable[[int], None], columns: int, line: str) -> None:
    """First the exception, then the beginning of the task's name, then the reason."""
    terminal(columns)
    assert shown()[1] == line


def test_columns_are_left_out_in_turn_and_named(terminal: Callable[[int], None]) -> None:
    """If narrowing is not enough; the other columns use the room."""
    terminal(50)
    assert shown()[1:] == [
        "3f2a9c1e  …nts.charge_card         3  ValueError:…",
        "77b0d6aa  shop.mail               11  -",
        "(no room for: reason; see --wide)",
    ]


def test_what_was_left_out_is_named_whole_on_the_narrowest_terminal(terminal: Callable[[int], None]) -> None:
    """The end of that line says how to see it."""
    terminal(24)
    assert shown()[3:] == ["(no room for: reason,", " attempts; see --wide)"]


def test_wide_characters_count_twice(terminal: Callable[[int], None]) -> None:
    """As a terminal shows them."""
    terminal(20)
    assert shown([("支払い支払い支払い支払い", "b")], (Column("a", gives=1), "b"))[1] == "支払い支払い支払…  b"


def test_words_have_the_colour_of_their_meaning(terminal: Callable[[int], None]) -> None:
    """Green for good, red for lost; texts from outside have no colour."""
    terminal(80)
    assert table([("dead_lettered", "x")], (Column("outcome", is_coloured=True), "b")).endswith("\x1b[31mdead_lettered\x1b[0m  x")
    assert coloured("succeeded") == "\x1b[32msucceeded\x1b[0m"
    assert coloured("whatever") == "whatever"
