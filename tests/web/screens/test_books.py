"""The books on the page: the job's results, each wrong life with its evidence, and hostile events in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.books.books_command import SUCCEEDED, run
from tests.support.books.spark_session import Histories, spark
from tests.support.page.axe import findings
from tests.support.page.browser import Browser, browser
from tests.support.page.web_page import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.page.web_page import WebPage

__all__ = ["browser", "spark"]

pytestmark = pytest.mark.xdist_group("spark")

SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x1b[31m\u202e"


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    """A balanced life, a waiting one, a lost one, one that ended twice, and a lost one whose texts are hostile."""
    histories = Histories()
    histories.add("task-fine", "published", SUCCEEDED)
    histories.add("task-lost", "published", ("received", {"delivery": 1, "worker": "w1@shop"}))
    ends = [("succeeded", {"delivery": number, "attempt": number, "worker": f"w{number}@shop"}) for number in (1, 2)]
    histories.add("task-twice", "published", *ends)
    evil = {"delivery": 1, "worker": SCRIPT, "exception": SCRIPT, "reason": SCRIPT}
    histories.add(SCRIPT, "published", ("received", evil), task=SCRIPT, queue=SCRIPT)
    histories.hold("task-waits", "queue")  # the inventory is an hour later: a life without an end that is nowhere is lost
    histories.write(tmp_path)
    return histories


@pytest.mark.usefixtures("spark", "histories")
def test_wrong_lives_are_shown_with_their_evidence(open_page: Callable[..., WebPage], tmp_path: Path) -> None:
    """A lost life and one that ended twice, each with its events, the likely cause and what to do. Also on the overview."""
    assert run(tmp_path).exit_code == 1
    operator = open_page("--books", str(tmp_path / "books")).operator()
    shown = operator.get("/books")
    for said in ("The books do not balance", "lives 5", "lost 2", "duplicated 1", "3 lives are wrong"):
        assert said in shown.read, (said, shown.read)
    twice = operator.get("/books?verdict=duplicated")
    for said in ("1 life is duplicated", "task-twice", "w1@shop", "w2@shop", "attempt 2", "compare the ends in the history"):
        assert said in twice.read, (said, twice.read)
    assert "task-lost" not in twice.read
    assert twice.text.count('class="o-succeeded"') == 2
    lost = operator.get("/books?verdict=lost").read
    for said in ("2 lives are lost", "task-lost", "the broker does not have it", "publish the task again"):
        assert said in lost, (said, lost)
    assert [each for each in twice.links("/task") if each.endswith("id=task-twice")]
    assert operator.get("/").read.count("do not balance") == 1
    for text in (shown.text, twice.text):
        assert "<script>alert" not in text
        assert not any(char in text for char in ("\x1b", "\u202e"))
    assert "&lt;script&gt;" in shown.text


@pytest.mark.full
@pytest.mark.usefixtures("spark", "histories")
def test_the_trend_over_the_runs_is_drawn(open_page: Callable[..., WebPage], histories: Histories, tmp_path: Path) -> None:
    """From the second run on, with the lives and discrepancies of each run."""
    run(tmp_path)
    page = open_page("--books", str(tmp_path / "books"))
    assert "Trend" not in page.operator().get("/books").read
    histories.add("task-later", "published", SUCCEEDED)
    histories.write(tmp_path)
    run(tmp_path, "--as-of", "2026-01-31T14:30:00Z")
    shown = page.operator().get("/books").text
    for drawn in ("lives of each of the last 2 runs", "discrepancies of each of the last 2 runs"):
        assert f'aria-label="{drawn}"' in shown, shown


@pytest.mark.full
@pytest.mark.usefixtures("spark", "histories")
def test_many_wrong_lives_are_shown_page_by_page(open_page: Callable[..., WebPage], histories: Histories, tmp_path: Path) -> None:
    """Each life is on one page only."""
    for number in range(60):
        histories.add(f"task-lost-{number:02}", "published", start_ms=1_769_860_800_000 + number)
    histories.write(tmp_path)
    assert run(tmp_path).exit_code == 1
    operator = open_page("--books", str(tmp_path / "books")).operator()
    first = operator.get("/books?verdict=lost")
    [more] = [each for each in first.links("/books?") if "after=" in each]
    pages = [first.text, operator.get(more).text]
    assert all(sum(f'id=task-lost-{number:02}"' in text for text in pages) == 1 for number in range(60))


def test_books_that_are_not_there_are_said(open_page: Callable[..., WebPage], tmp_path: Path) -> None:
    """On their screen and on the overview, which still works."""
    operator = open_page("--books", str(tmp_path / "none")).operator()
    assert "there are no books in" in operator.get("/books").read
    overview = operator.get("/")
    assert (overview.status, "there are no books in" in overview.read) == (200, True)


@pytest.mark.parametrize("spoiled", [{"verdicts": {"lost": "many"}}, {"verdicts": {"lost": [1]}}, {"lives": None}, {"gaps": 5}])
def test_a_summary_with_values_of_another_type_is_said(
    open_page: Callable[..., WebPage], tmp_path: Path, spoiled: dict[str, Any]
) -> None:
    """On their screen and on the overview, which still works."""
    whole = {"verdicts": {}, "as_of_ms": 1, "lives": 1, "events": 1, "possible_repeats": 0}
    (tmp_path / "summary.json").write_text(json.dumps({**whole, **spoiled}))
    operator = open_page("--books", str(tmp_path)).operator()
    assert "summary.json is not a summary of these books" in operator.get("/books").read
    assert operator.get("/").status == 200


@pytest.mark.full
@pytest.mark.usefixtures("spark", "histories")
def test_axe_finds_nothing_in_the_books(browser: Browser, open_page: Callable[..., WebPage], tmp_path: Path) -> None:
    """With wrong lives on the screen. Nothing is wider than the window."""
    assert run(tmp_path).exit_code == 1
    page = open_page("--books", str(tmp_path / "books"))
    browser.open(f"{page.address}/login?token={TOKEN}")
    for scheme in ("light", "dark"):
        for width in (390, 1280):
            browser.open(f"{page.address}/books", width=width, scheme=scheme)
            assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), width
        assert findings(browser) == []
