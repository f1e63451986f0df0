"""The texts and drawings of the report, from numbers alone: words, plots, the flow, and texts from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from redelivery.workers.reconciliation.figures.figures import Figures
from redelivery.workers.reconciliation.report.pictures import ENDINGS, drawn, over_time
from redelivery.workers.reconciliation.report.report import page
from redelivery.workers.reconciliation.report.summary import MAX_RUNS, Summary, line_of, merged
from redelivery.workers.reconciliation.report.wording import NONE, change, duration, lines_of, plain, share, shown
from redelivery.workers.reconciliation.rules import DISCREPANCIES, RULES, VERDICTS

HOUR = 3_600_000
NOON = 1_769_860_800_000
EVIL = "<script>alert(1)</script>\"'&\x1b[31m\u202e"

EMPTY = Summary(
    balanced=True,
    as_of_ms=NOON,
    grace_ms=600_000,
    events=0,
    lives=0,
    verdicts=dict.fromkeys(VERDICTS, 0),
    outcomes={},
    possible_repeats=0,
    unannounced=0,
    gaps=[],
)


#: How the lives of a small report ended.
ENDED = {"succeeded": 7, "dead_lettered": 2, "duplicated": 1}


def wrong(**verdicts: int) -> Summary:
    """A summary of so many lives of each verdict."""
    counts = EMPTY.verdicts | verdicts
    return replace(EMPTY, balanced=not any(counts[name] for name in DISCREPANCIES), verdicts=counts, lives=sum(counts.values()))


def text_of(page: str) -> str:
    """The text of a page, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33 %"),
        (1, 1000, "0.10 %"),
        (1, 10**6, "< 0.01 %"),
        (10**6 - 1, 10**6, "> 99.99 %"),
        (999, 1000, "99.90 %"),
        (12, 1000, "1.2 %"),
        (1, 0, NONE),
        (None, 5, NONE),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(part: int | None, whole: int, said: str) -> None:
    """One lost task in a million is not 0 %."""
    assert share(part, whole) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (1254, "1.25 s"),
        (90_000, "90 s"),
        (150_000, "2.5 min"),
        (HOUR, "1 h"),
        (26 * HOUR, "26 h"),
        (72 * HOUR, "3 d"),
        (None, NONE),
    ],
)
def test_a_duration_has_its_natural_unit(ms: int | None, said: str) -> None:
    """Three digits at most."""
    assert duration(ms) == said


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (110, 100, "+10 %"),
        (97, 100, "\N{MINUS SIGN}3.0 %"),
        (0, 5, "\N{MINUS SIGN}100 %"),
        (300, 100, "\N{MULTIPLICATION SIGN}3"),
        (5, 5, "as before"),
        (0, 0, "as before"),
        (5, 0, "new"),
        (None, 5, ""),
    ],
)
def test_a_change_says_how_much_more_or_less(now: int | None, before: int | None, said: str) -> None:
    """A doubling and more is a factor."""
    assert change(now, before) == said


def test_strangers_text_is_harmless() -> None:
    """No tag, quote, control character or change of text direction is left."""
    assert shown(EVIL) == "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b[31m\\u202e"
    assert plain(EVIL).isprintable()
    assert len(shown("x" * 10_000)) <= 400


def test_columns_over_time_hold_every_letter_and_are_of_one_width() -> None:
    """Each column is an hour if that fits; a span of months has wider ones; at most 48."""
    hours = [{"hour": NOON // HOUR + at, "reason": "exhausted", "letters": at + 1} for at in (0, 5, 30)]
    spans = over_time(hours, until_ms=NOON + 31 * HOUR)
    assert sum(each.count for each in spans) == 1 + 6 + 31
    assert {each.to_ms - each.from_ms for each in spans} == {HOUR}
    assert (spans[0].from_ms, spans[-1].to_ms) == (NOON, NOON + 32 * HOUR)
    months = over_time([hours[0] | {"hour": 1}, *hours], until_ms=NOON)
    assert len(months) <= 48
    assert sum(each.count for each in months) == 39
    single = over_time(hours[:1], until_ms=NOON)
    assert (len(single), single[-1].count) == (12, 1)


def test_the_flow_shows_every_ending_and_no_band_is_too_thin_to_be_seen() -> None:
    """One lost life in a million has a band; what flows into a bar flows out of it."""
    flow = [{"opened": "published", "way": "first", "ending": "succeeded", "lives": 10**6}]
    flow += [{"opened": "published", "way": "none", "ending": ending, "lives": 1} for ending in ENDINGS if ending != "succeeded"]
    flow += [
        {"opened": opened, "way": "more", "ending": "dead_lettered", "lives": 2} for opened in ("redriven", "received", "nobody")
    ]
    for width in (928, 343):
        drawing = ET.fromstring(drawn(flow, width=width))  # noqa: S314 - our own text
        bars = list(drawing.iter("rect"))
        assert len(bars) == 4 + 3 + len(ENDINGS)
        assert min(float(each.attrib["height"]) for each in bars) >= 2
        words = " ".join(drawing.itertext())
        assert "1,000,000" in words
        assert all(name.replace("_", " ").replace("dead lettered", "dead letter") in words for name in ENDINGS)
        assert max(float(each.attrib["x"]) + float(each.attrib["width"]) for each in bars) <= width
        tops = [float(each.attrib["y"]) for each in drawing.iter("text") if "number" in each.attrib["class"].split()]
        assert tops
    assert drawn([], width=343) == ""


def test_the_page_says_by_how_much_the_books_do_not_balance() -> None:
    """The first sentence says so, with the kinds."""
    text = text_of(page(wrong(lost=3, missing_dead_letter=2, balanced=95), []))
    assert "The books do not balance ." in text
    assert "5 of 100 lives (5.0 %) are wrong: 3 lost, 2 missing dead letters." in text


def test_the_page_of_balanced_books_says_so_and_names_what_is_open() -> None:
    """Nothing is red if nothing is wrong."""
    whole = page(wrong(balanced=9, in_flight=1), [])
    assert "Each of 10 lives was opened once and ended once, except 1 that is still in flight." in text_of(whole)
    assert 'id="faults"' not in whole


def test_a_gap_is_told_of_where_nothing_else_is_wrong() -> None:
    """Then the books do not balance, and the page says why."""
    gap = {"after": "1-0", "before": EVIL, "lost": 7, "why": "cap", "noticed_ms": 1}
    whole = page(replace(wrong(balanced=9), balanced=False, gaps=[gap]), [])
    assert "The outcome log has 1 gap of 7 events: what was in it cannot be accounted for." in text_of(whole)
    assert "<script>" not in whole


def test_a_gap_of_unknown_size_is_told_of_too() -> None:
    """An export notes such a gap without `lost`, for example after a server has lost its last two seconds."""
    gap = {"after": "2-0", "before": "1-0", "why": "replaced", "noticed_ms": 1}
    text = text_of(page(replace(wrong(balanced=9), balanced=False, gaps=[gap]), []))
    assert "gap ? outcome log Events left the log before they were exported. after 2-0, before 1-0, why replaced" in text


def test_what_earlier_runs_had_said_is_named() -> None:
    """Corrections, and discrepancies that remain."""
    text = text_of(page(replace(wrong(balanced=9), corrections=1, standing={"lost": 2}), []))
    assert "1 life of closed books has another verdict now (corrections)." in text
    assert "2 discrepancies reported before still stand" in text


def test_the_page_explains_its_words() -> None:
    """Those that a reader without the documents does not know."""
    text = text_of(page(wrong(balanced=9), []))
    for word in (
        "life One pass of a task through a queue",
        "phantom dead letter A dead-letter queue holds it",
        "grace A life that",
    ):
        assert word in text, text


def test_the_page_names_the_app_the_broker_and_the_period() -> None:
    """If the inputs have them; and the length of the grace period."""
    whose = replace(wrong(balanced=9), app="shop", broker="redis://redis:6379/0", from_ms=NOON - HOUR, until_ms=NOON)
    text = text_of(page(whose, []))
    assert "shop on redis://redis:6379/0 · events from 2026-01-31 11:00 to 2026-01-31 12:00 · as of" in text
    assert "older than this: here 10 min." in text
    assert "redis" not in text_of(page(wrong(balanced=9), []))


def test_verdicts_that_no_life_has_are_one_line() -> None:
    """The others have a row each, the most frequent first; each is explained."""
    whole = page(wrong(lost=2, balanced=9), [])
    assert re.findall(r'data-verdict="(\w+)"', whole) == ["balanced", "lost"]
    text = text_of(whole)
    assert "No life is orphaned, duplicated, resurrected, phantom dead letter, missing dead letter, stuck, in flight." in text
    assert all(rule in text for rule in RULES.values())


def test_dead_letters_that_still_lie_there_stand_beside_those_that_were_redriven() -> None:
    """In total, and for each cause; with the text of the exception."""
    cause = {"reason": "exhausted", "fingerprint": "9f2c", "exception": "ValueError", "queue": "celery", "example": "a"}
    figures = Figures(
        total={"dead_lettered": 9, "redriven": 2, "attempts_made": 9, "attempts_wasted": 9},
        causes=[cause | {"letters": 9, "redriven": 2, "held": 7, "message": "amount <-12.50> \u202e"}],
    )
    whole = page(replace(wrong(balanced=9), figures=figures, dead_letters_held=7), [])
    assert "9 messages died, 2 were redriven; 7 still lie in a dead-letter queue" in text_of(whole)
    assert "amount &lt;-12.50&gt; \\u202e" in whole
    row = re.search(r'<tr data-cause="9f2c">.*?</tr>', whole, re.DOTALL)
    assert row is not None
    assert [re.sub("<.*?>", "", each) for each in re.findall(r'<td class="n[^>]*>(.*?)</td>', row[0])] == [
        "9",
        "2",
        "7 still there",
    ]


def test_a_page_is_read_in_a_minute() -> None:
    """Five lines: how many, their ends, remaining dead letters, what is wrong, the cost; each with its change, by its name."""
    total = {"published": 9, "succeeded": 8, "succeeded_at_first_attempt": 6, "dead_lettered": 2, "redriven": 1}
    figures = Figures(
        total=total | {"attempts_made": 20, "attempts_wasted": 5},
        flow=[{"opened": "published", "way": "straight", "ending": each, "lives": many} for each, many in ENDED.items()],
    )
    summary = replace(wrong(balanced=9, duplicated=1), figures=figures, dead_letters_held=2, possible_repeats=1)
    before = line_of(summary) | {"as_of_ms": NOON - HOUR, "succeeded": 4, "dead_letters_held": 1, "attempts_wasted": 10, "lives": 8}
    whole = page(summary, [before, line_of(summary)])
    lines = re.search(r'<dl class="minute">(.*?)</dl>', whole, re.DOTALL)
    assert lines is not None
    cells = [text_of(each).strip() for each in lines[1].split("</dd>")[:-1]]
    assert cells == [
        "Total 10 lives: 9 published, 1 redriven (+25 %)",
        "Where it went 7 succeeded (70 %), 2 dead letters (20 %), 1 wrong (10 %) (succeeded \N{MULTIPLICATION SIGN}2)",
        "Dead letters 2 messages died, 1 was redriven; 2 still lie in a dead-letter queue (still there \N{MULTIPLICATION SIGN}2)",
        "What is wrong 1 life (as before)",
        "What it cost 5 of 20 attempts (25 %) brought no success; 1 task may have run twice (without success \N{MINUS SIGN}50 %)",
    ]
    assert "75 % at the first attempt, 1 of them wrong" in text_of(whole)


def test_names_are_broken_between_their_words_and_only_long_ones_within() -> None:
    """A short name stays whole, an id stays on one line."""
    queues = [{"queue": name, "time_to_success_ms": [1.0, 2.0, 3.0]} for name in ("celery", "reports.monthly", "x" * 60)]
    whole = page(replace(wrong(balanced=1), figures=Figures(queues=queues)), [])
    cells = re.findall(r'<td class="wide queue">(.*?)</td>', whole)
    assert cells == ["celery", "reports.<wbr>monthly", "<wbr>".join(["x" * 24, "x" * 24, "x" * 12])]


def hostile() -> Summary:
    """Every name is a stranger's, and hostile."""
    times = [1.0, 2.0, 3.0]
    figures = Figures(
        total={
            "time_to_success_ms": times,
            "succeeded": 1,
            "succeeded_at_first_attempt": 1,
            "attempts_made": 2,
            "attempts_wasted": 1,
        },
        flow=[{"opened": EVIL, "way": EVIL, "ending": EVIL, "lives": 1}],
        queues=[{"queue": EVIL, "time_to_success_ms": times}],
        hours=[{"hour": NOON // HOUR, "reason": EVIL, "letters": 2}],
        causes=[
            dict.fromkeys(("reason", "fingerprint", "exception", "queue", "example", "message"), EVIL)
            | {"letters": 1, "redriven": 0, "held": 1}
        ],
        faults=[
            {
                "verdict": "lost",
                "queue": EVIL,
                "task": EVIL,
                "lives": 1,
                "first": {"task_id": EVIL, "cause": EVIL, "advice": f"`{EVIL}` or {EVIL}"},
            }
        ],
    )
    return replace(wrong(lost=1), figures=figures, app=EVIL, broker=EVIL)


def test_hostile_names_stay_text_on_the_page_and_in_the_terminal() -> None:
    """Any client may choose queues, tasks, ids, reasons, exceptions and fingerprints."""
    whole = page(hostile(), [])
    assert "<script" not in whole
    assert "alert(1)" in whole
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", whole)
    assert all(line.isprintable() for line in lines_of(hostile().figures or Figures()))


def test_the_page_refers_to_nothing_outside_itself() -> None:
    """No address, no script, no style sheet, no font, no picture: it opens offline."""
    whole = page(hostile(), [])
    assert not re.search(r"https?:|//|@import|url\(|<script|<img|<iframe|\bsrc=", whole.replace("alert(1)</", ""))
    assert re.findall(r'href="([^"]*)"', whole) == ["data:,"]


def test_a_trend_is_bounded_and_a_repeated_run_replaces_its_own_line() -> None:
    """The latest runs, in order; a later run does not count as an earlier one."""
    lines = [{"as_of_ms": at} for at in range(200)]
    kept = merged(lines, {"as_of_ms": 100, "lives": 1})
    assert len(kept) == MAX_RUNS
    assert kept[-1] == {"as_of_ms": 100, "lives": 1}
    assert [each["as_of_ms"] for each in kept] == list(range(101 - MAX_RUNS, 101))
    assert merged(kept, kept[-1]) == kept


def test_the_page_compares_with_the_run_before() -> None:
    """How much a figure has changed, and since when."""
    line = line_of(wrong(balanced=1))
    trend = [line | {"as_of_ms": NOON - HOUR, "published": 100}, line | {"published": 125}]
    text = text_of(page(wrong(balanced=1), trend))
    assert "+25 %" in text
    assert "Changes are since the run as of 2026-01-31 11:00 UTC." in text
