"""The books on planted histories: the faults are found, the figures are right, and the report works in a real browser.

One run of the job over synthetic histories (`benchmarks/history_files.py`), whose truth is known, serves all tests here.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset

from benchmarks.histories import FAULTS, TAKEN_MS
from benchmarks.history_files import Untidy, write_histories
from benchmarks.proof import scores
from redelivery.workers.reconciliation.job import Books, reconcile
from redelivery.workers.reconciliation.report.wording import count, duration
from redelivery.workers.reconciliation.rules import VERDICTS
from tests.support.books.spark_session import Row, spark
from tests.support.page.browser import Browser, browser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from redelivery.workers.reconciliation.report.summary import Summary

__all__ = ["browser", "spark"]

#: The first test starts Spark, a broker or a browser, and waits for a whole run of the job.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

DAY = 86_400_000
#: Of axe-core, which `requirements/stubs.in` puts beside the environment.
AXE = Path(sys.prefix) / "stubs" / "axe_playwright_python" / "axe.min.js"
EPOCH = date(1970, 1, 1)


@dataclass
class Proved:
    """The folder, the planted faults, each event once, and the result of the job."""

    folder: Path
    planted: dict[str, int]
    events: list[Row]
    summary: Summary

    def table(self, name: str) -> list[Row]:
        """The rows of one of the job's tables."""
        read: list[Row] = dataset.dataset(self.folder / "books" / name).to_table().to_pylist()
        return read

    @property
    def lives(self) -> dict[tuple[str, int], list[Row]]:
        """The events of each life."""
        found: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for event in self.events:
            found[event["task_id"], event["generation"]].append(event)
        return found


@pytest.fixture(scope="module")
def proved(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Proved:
    """Four thousand tasks, a hundred planted faults, a twentieth of the events twice, late or by a wrong clock, in any order."""
    folder = tmp_path_factory.mktemp("proved")
    planted = write_histories(folder, tasks=4000, rates=0.004, untidy=Untidy(), seed=7)
    outcomes, inventory, output = (str(folder / name) for name in ("outcomes", "inventory", "books"))
    summary = reconcile(spark, Books(outcomes=outcomes, inventory=inventory, output=output, all_lives=True))
    read = dataset.dataset(folder / "outcomes", partitioning=None).to_table().to_pylist()
    return Proved(folder, planted, list({row["event_id"]: row for row in read}.values()), summary)


def test_every_planted_fault_is_found_and_nothing_else(proved: Proved) -> None:
    """Recall and precision are 1.0 for each verdict, with events twice, late, by wrong clocks and in any order."""
    found = scores(proved.folder)
    assert set(found) == set(VERDICTS)
    assert {name: (score.recall, score.precision) for name, score in found.items()} == dict.fromkeys(VERDICTS, (1.0, 1.0))
    assert {name: found[name].truly for name in FAULTS} == proved.planted
    assert min(proved.planted.values()) >= 5


def test_the_summary_and_the_metrics_count_what_was_told(proved: Proved) -> None:
    """All rows of the metrics together have each event once; a row is one queue, task and day."""
    rows = proved.table("metrics")
    counts = Counter(event["outcome"] for event in proved.events)
    assert {name: many for name, many in proved.summary.outcomes.items() if many} == dict(counts)
    assert sum(row["redeliveries"] for row in rows) == counts["redelivery_scheduled"]
    lives = proved.lives
    for name in ("published", "redriven", "succeeded", "dead_lettered", "purged", "expired"):
        assert sum(row[name] for row in rows) == sum(any(each["outcome"] == name for each in life) for life in lives.values()), name
    assert len({(row["queue"], row["task"], row["day"]) for row in rows}) == len(rows)
    assert sum(row["lives"] for row in rows) == len(lives)
    for row in rows:
        assert sum(row_of(row, "succeeded_at_attempt").values()) == row["succeeded"]
        assert sum(row_of(row, "dead_lettered_by_reason").values()) == row["dead_lettered"]


def row_of(row: Row, name: str) -> dict[Any, int]:
    """A map column."""
    return dict(row[name])


def test_times_to_success_are_right_to_within_a_percent(proved: Proved) -> None:
    """From a life's first event to its end, for each queue, task and day."""
    times: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for life in proved.lives.values():
        ends = [each["at_ms"] for each in life if each["outcome"] in {"succeeded", "dead_lettered"}]
        if any(each["outcome"] == "succeeded" for each in life):
            first = min(each["at_ms"] for each in life)
            times[life[0]["queue"], life[0]["task"], first // DAY].append(min(ends) - first)
    checked = 0
    for row in proved.table("metrics"):
        known = times[row["queue"], row["task"], (row["day"] - EPOCH).days]
        if len(known) > 2:
            cuts = statistics.quantiles(known, n=100, method="inclusive")
            for at in (50, 95, 99):
                assert row[f"time_to_success_p{at}_ms"] == pytest.approx(cuts[at - 1], rel=0.01, abs=2)
            checked += 1
    assert checked >= 4


def test_attempts_without_success_and_delays_add_up(proved: Proved) -> None:
    """`asked` is the sum of the delays of lives that ended by a delivery; `waited` also contains the time of the attempts."""
    rows, asked, lives = proved.table("metrics"), 0, 0
    for life in proved.lives.values():
        words = [each["outcome"] for each in life]
        if "redelivery_scheduled" in words and {"succeeded", "dead_lettered"} & set(words):
            asked += sum(each["delay_ms"] or 0 for each in life if each["outcome"] == "redelivery_scheduled")
            lives += 1
    assert sum(row["delayed_lives"] for row in rows) == lives
    assert sum(row["delay_asked_ms"] for row in rows) == asked
    assert all(row["delay_waited_ms"] >= row["delay_asked_ms"] for row in rows if row["delayed_lives"] > 50)
    counts = Counter(event["outcome"] for event in proved.events)
    died = sum(each["outcome"] == "dead_lettered" for each in proved.events)
    made = sum(row["attempts_made"] for row in rows)
    assert (
        counts["redelivery_scheduled"] + counts["succeeded"] <= made <= counts["redelivery_scheduled"] + counts["succeeded"] + died
    )
    assert sum(row["redriven_succeeded"] for row in rows) == sum(
        any(each["outcome"] == "succeeded" for each in life) for (_, generation), life in proved.lives.items() if generation
    )


def test_causes_are_counted_by_fingerprint_with_an_example_that_died_of_it(proved: Proved) -> None:
    """There are as many dead letters as deaths, and the example of each cause is one of them."""
    deaths = {each["task_id"]: each for each in proved.events if each["outcome"] == "dead_lettered"}
    rows = proved.table("causes")
    assert sum(row["letters"] for row in rows) == sum(each["outcome"] == "dead_lettered" for each in proved.events)
    for row in rows:
        example = deaths[row["example"]]
        assert {name: row[name] for name in ("queue", "task", "reason", "fingerprint", "exception")} == {
            name: example[name] for name in ("queue", "task", "reason", "fingerprint", "exception")
        }
        assert row["first_ms"] <= row["last_ms"]
    assert len({row["fingerprint"] for row in rows}) == 3


def test_the_trend_holds_this_run(proved: Proved) -> None:
    """One line, with the summary's own numbers."""
    (line,) = json.loads((proved.folder / "books" / "trend.json").read_text())
    assert (line["as_of_ms"], line["lives"], line["balanced"]) == (TAKEN_MS, proved.summary.lives, False)
    assert line["discrepancies"] == sum(proved.planted.values())


def test_the_terminal_names_times_causes_and_queues(proved: Proved) -> None:
    """In a few lines above the last one, which says whether the books balance."""
    table = proved.summary.to_table()
    assert re.search(r"\d+ % of the successes came at the first attempt; half within ", table)
    assert "died of" in table
    assert "95 % of" in table
    assert table.endswith("The books DO NOT BALANCE.")


# in the browser


def shown(browser: Browser, selector: str) -> str:
    """The text of an element as it is drawn, in one line."""
    text = browser.ask(f"document.querySelector({json.dumps(selector)}).innerText")
    return " ".join(str(text).split())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_the_report_opens_without_an_error_a_request_or_a_sideways_scroll(
    proved: Proved, browser: Browser, width: int, scheme: str
) -> None:
    """In a wide, a middle and a narrow window, light and dark: only its own file is read, and nothing is wider than the window."""
    report = proved.folder / "books" / "report.html"
    page = browser.open(report, width=width, scheme=scheme)
    assert page.logged == []
    assert page.requested == [report.resolve().as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") == width
    paper, ink = (
        sum(int(part) for part in re.findall(r"\d+", str(browser.ask(f"getComputedStyle(document.body).{name}")))[:3])
        for name in ("backgroundColor", "color")
    )
    assert (paper > ink) == (scheme == "light")
    drawn = browser.ask("[...document.querySelectorAll('svg.flow')].filter(each => each.getBoundingClientRect().width > 0).length")
    assert drawn == 1
    assert browser.ask("document.querySelectorAll('script, link[rel=stylesheet], img, iframe').length") == 0


#: The names of queues that take more than one line.
BROKEN_QUEUES = """[...document.querySelectorAll('td.queue')].filter(cell => {
    const text = document.createRange()
    text.selectNodeContents(cell)
    return new Set([...text.getClientRects()].map(box => Math.round(box.top))).size > 1
}).map(cell => cell.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_axe_finds_nothing_and_ids_moments_and_queues_stay_on_one_line(
    proved: Proved, browser: Browser, width: int, scheme: str
) -> None:
    """No rule of axe-core is broken; it cannot decide only the contrast of text over the bands of the picture."""
    browser.open(proved.folder / "books" / "report.html", width=width, scheme=scheme)
    assert browser.ask("[...document.querySelectorAll('.id, time')].filter(each => each.getClientRects().length > 1).length") == 0
    if width > 390:
        assert browser.ask(BROKEN_QUEUES) == []
    browser.ask(f"{AXE.read_text(encoding='utf-8')}; null")
    found = json.loads(browser.ask("axe.run(document).then(JSON.stringify)"))
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]] == []
    assert {each["id"] for each in found["incomplete"]} <= {"color-contrast"}
    assert len(found["passes"]) > 30


def test_the_page_says_whose_books_they_are_and_what_still_lies_there(proved: Proved, browser: Browser) -> None:
    """The app, the broker, the period; dead letters in the inventory; the texts of exceptions."""
    browser.open(proved.folder / "books" / "report.html")
    assert shown(browser, ".kicker").startswith("shop on redis://redis:6379/0 · events from 2026-01-31 ")
    held = dataset.dataset(proved.folder / "inventory" / "inventory.parquet").to_table().to_pylist()
    letters = [row for row in held if row["place"] == "dead_letter"]
    assert f"{len(letters)} still lie in a dead-letter queue" in shown(browser, ".minute")
    assert any(row["message"] in shown(browser, "#causes") for row in letters if row["message"])
    wrong_place = {"phantom_dead_letter"}
    held_of_causes = sum(row["held"] for row in proved.table("causes"))
    assert held_of_causes == len(letters) - sum(proved.planted[name] for name in wrong_place)


def test_the_numbers_on_the_page_are_those_of_the_books(proved: Proved, browser: Browser) -> None:
    """The headline, each verdict, the figures of the day, the attempts, the slowest queue."""
    browser.open(proved.folder / "books" / "report.html")
    summary = json.loads((proved.folder / "books" / "summary.json").read_text())
    assert shown(browser, "h1") == "The books do not balance."
    wrong = sum(proved.planted.values())
    assert shown(browser, ".lead").startswith(f"{wrong:,} of {summary['lives']:,} lives (")
    for name, many in summary["verdicts"].items():
        assert shown(browser, f'[data-verdict="{name}"] td:last-child') == f"{many:,}"
    rows = proved.table("metrics")
    for name in ("published", "dead_lettered", "redeliveries", "succeeded"):
        assert shown(browser, f'[data-figure="{name}"] dd') == count(sum(row[name] for row in rows))
    by_attempt: Counter[int] = Counter()
    for row in rows:
        by_attempt.update(row_of(row, "succeeded_at_attempt"))
    for number in (1, 2):
        assert shown(browser, f'[data-attempts="{number}"] td:nth-child(2)') == count(by_attempt[number])
    figures = proved.summary.figures
    assert figures is not None
    slowest = figures.queues[0]
    assert shown(browser, "[data-queue] td.strong") == duration(slowest["time_to_success_ms"][1])
    faults = browser.ask("[...document.querySelectorAll('[data-fault]')].map(each => each.dataset.fault)")
    assert set(faults) == set(FAULTS)


def test_the_flow_on_the_page_adds_up_to_all_lives(proved: Proved, browser: Browser) -> None:
    """The numbers beside the endings are all lives, and so are those beside the openings."""
    browser.open(proved.folder / "books" / "report.html")
    numbers = browser.ask("[...document.querySelectorAll('.wide-only svg.flow .number:not(.faint)')].map(each => each.textContent)")
    assert sum(int(each.replace(",", "")) for each in numbers) == 2 * proved.summary.lives
