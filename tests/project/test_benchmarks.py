"""The benchmarks: two of them run at a tiny scale, and their numbers are computed correctly."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import machine
from benchmarks.comparisons import COMPARISONS, Amount, chosen
from benchmarks.figures import Figure, less, more, percentile
from benchmarks.plots import INK, comparison_plot, ratio_plot, write_plots
from benchmarks.results import Result, read_all
from benchmarks.running import MeasurementError, Plan, measured
from benchmarks.sides import NAMES
from benchmarks.small_day import Run, figures_of
from benchmarks.stamps import late_ms, write_stamp
from benchmarks.summary import Ratio, Row, meets, summarised
from benchmarks.table import BEGIN, END, fill, number, table
from benchmarks.turns import moments, turns

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
NAMED = {"name": "noop", "title": COMPARISONS["noop"].title, "sides": ("plain", "redelivery", "rq")}


def result(*pairs: Mapping[str, Mapping[str, Figure]], **changed: Any) -> Result:
    """A result with these rounds."""
    facts: dict[str, Any] = {
        **NAMED,
        "rounds": len(pairs),
        "scale": 1.0,
        "amounts": {"tasks": 6000},
        "day": "2026-01-31",
        "machine": {"processor": "A processor", "cores": 2, "memory_gb": 24, "system": "Linux"},
        "versions": {"python": "3.11", "celery": "5.7.0"},
        "load": {"before": 0.31, "after": 1.9, "asked": None, "calm": None},
        "pairs": pairs,
    }
    return Result(**{**facts, **changed})


def rate(plain: float, ours: float, **others: float) -> dict[str, dict[str, Figure]]:
    """One round: tasks a second for each side."""
    return {
        side: {"tasks_per_second": more(value, "tasks/s")} for side, value in {"plain": plain, "redelivery": ours, **others}.items()
    }


ROUNDS = (rate(1000, 1200, rq=80), rate(500, 1000, rq=60), rate(1000, 1500, rq=70))


# computing with the numbers


def test_a_ratio_is_made_of_two_sides_of_one_round() -> None:
    """Each side has a median. The ratio is the median of the ratios of all rounds, with the lowest and the highest."""
    (row,) = summarised(ROUNDS)
    assert row.medians == {"plain": 1000, "redelivery": 1200, "rq": 70}
    assert row.ratio == Ratio(1.5, 1.2, 2.0)


def test_a_figure_that_one_side_lacks_has_no_ratio() -> None:
    """The same applies to a figure of zero or less."""
    rows = summarised([{"plain": {"a": less(1, "s"), "c": less(0, "s")}, "redelivery": {"b": less(1, "s"), "c": less(-2, "s")}}])
    assert [(row.name, row.ratio) for row in rows] == [("a", None), ("c", None), ("b", None)]


@pytest.mark.parametrize(
    ("row", "aim", "met"),
    [
        (Row("a", "1/s", "more", {"plain": 1, "redelivery": 2}, Ratio(1.3, 1, 2)), 1.3, True),
        (Row("a", "1/s", "more", {"plain": 1, "redelivery": 2}, Ratio(1.29, 1, 2)), 1.3, False),
        (Row("a", "ms", "less", {"plain": 1, "redelivery": 2}, Ratio(1.1, 1, 2)), 1.1, True),
        (Row("a", "ms", "less", {"plain": 1, "redelivery": 2}, Ratio(1.11, 1, 2)), 1.1, False),
        (Row("a", "1/s", "more", {"redelivery": 10_000}, None), 10_000, True),
        (Row("a", "ms", "less", {"redelivery": 101}, None), 100, False),
        (Row("a", "ms", "less", {"plain": 0, "redelivery": 101}, None), 100, None),
        (Row("a", "ms", "less", {"plain": 3}, None), 100, None),
    ],
)
def test_an_aim_is_a_ratio_or_a_value_where_nothing_is_compared(row: Row, aim: float, *, met: bool | None) -> None:
    """An aim is a minimum for "more" and a maximum for "less". Without a value it is neither met nor missed."""
    assert meets(row, aim) is met


def test_a_percentile_is_one_of_the_values() -> None:
    """The smallest value that this share of the values does not exceed, in any order. Without values there is none."""
    values = [float(each) for each in range(100, 0, -1)]
    assert [percentile(values, part) for part in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_a_task_that_did_not_run_or_ran_twice_is_no_measurement(tmp_path: Path) -> None:
    """There must be one time for each task, in milliseconds."""
    path = tmp_path / "stamps"
    write_stamp(time.time() + 3600, str(path))
    assert -3_600_001 < late_ms(path, expected=1)[0] < 0
    with pytest.raises(RuntimeError, match="2 tasks were published, and 1 ran"):
        late_ms(path, expected=2)
    with pytest.raises(RuntimeError, match="and 0 ran"):
        late_ms(tmp_path / "none", expected=1)


# storing and showing


def test_a_result_is_read_as_it_was_kept(tmp_path: Path) -> None:
    """With its facts, rounds and loads."""
    result(*ROUNDS).write(tmp_path / "results")
    assert read_all(tmp_path / "results") == {"noop": result(*ROUNDS)}


def test_the_table_has_its_place_in_the_readme_and_keeps_the_rest(tmp_path: Path) -> None:
    """Writing it twice gives the same text. A README without the markers is refused."""
    readme = tmp_path / "README.md"
    readme.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n")
    fill(readme, {"noop": result(*ROUNDS)})
    once = readme.read_text()
    assert once.startswith("# Before\n")
    assert once.endswith("after\n")
    assert "old" not in once
    assert "| tasks per second, tasks/s | 1,000 | 1,200 | 1.50 (1.20 to 2.00) | ≥ 3.50 ✗ |  | 70.0 |" in once
    fill(readme, {"noop": result(*ROUNDS)})
    assert readme.read_text() == once
    readme.write_text("# No place\n")
    with pytest.raises(ValueError, match="has no place for the table"):
        fill(readme, {})


def test_the_table_says_where_and_how_calm() -> None:
    """It names the machine once for its results, the load for each result, and says if the machine was busy."""
    load = {"before": 2.4, "after": 3, "asked": 0.5, "calm": False}
    text = table({"failing": result(*ROUNDS, name="failing", load=load), "noop": result(*ROUNDS)})
    assert text.count("A processor, 2 cores, 24 GB") == 1
    assert text.index("`noop`") < text.index("`failing`")
    assert "load 2.4 before, on a machine that was busy" in text
    assert table({}) == "Nothing has been measured yet.\n"


@pytest.mark.parametrize(
    ("value", "shown"), [(1234.5, "1,234"), (99.96, "100.0"), (12.34, "12.3"), (1.0, "1"), (0.5, "0.50"), (-150, "-150")]
)
def test_numbers_are_shown_with_three_figures(value: float, shown: str) -> None:
    """Thousands have a comma."""
    assert number(value) == shown


def test_plots_are_readable_on_any_page_and_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    """They are SVG with the text colour of the page, light or dark. The same results give the same bytes."""
    drawn = comparison_plot(result(*ROUNDS))
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own
    assert "prefers-color-scheme:dark" in drawn
    assert "currentColor" in drawn
    assert INK not in drawn
    assert all(word in drawn for word in ("redelivery", "1,200", "more is better"))
    assert comparison_plot(result(*ROUNDS)) == drawn
    overview = ratio_plot({"noop": result(*ROUNDS)})
    assert COMPARISONS["noop"].title in overview
    write_plots({"noop": result(*ROUNDS)}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["noop.svg", "ratios.svg"]
    write_plots({}, tmp_path / "none")
    assert (tmp_path / "none" / "ratios.svg").exists()


# choosing comparisons


def test_comparisons_are_chosen_by_name_or_pattern() -> None:
    """In the table's order; without names, all. The error for a wrong name suggests another one."""
    assert [each.name for each in chosen(["idle-1", "noop"])] == ["noop", "idle-1"]
    assert {each.name for each in chosen(["idle-*"])} == {"idle-1", "idle-10", "idle-100"}
    assert chosen([]) == list(COMPARISONS.values())
    with pytest.raises(ValueError, match="did you mean 'lateness'"):
        chosen(["latenes"])


def test_every_comparison_names_sides_that_there_are_and_begins_with_the_base() -> None:
    """Two or more sides are compared with plain Celery. A single side is redelivery."""
    for each in COMPARISONS.values():
        assert set(each.sides) <= set(NAMES)
        assert each.sides[:2] == ("plain", "redelivery") or each.sides == ("redelivery",)


def test_an_amount_is_scaled_and_never_too_little() -> None:
    """The least amount still measures something."""
    assert [Amount(1000, 50).scaled(scale) for scale in (2, 1, 0.1, 0.01)] == [2000, 1000, 100, 50]


def test_calm_is_waited_for_and_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins when the load has fallen, or after the longest wait. The output says which."""
    loads = iter([3.0, 3.0, 2.0, 0.4])
    said: list[str] = []
    monkeypatch.setattr(machine, "load", lambda: next(loads, 0.4))
    monkeypatch.setattr(machine, "LOOK", 0.001)
    assert machine.wait_for_calm(0.5, said.append)
    monkeypatch.setattr(machine, "load", lambda: 3.0)
    monkeypatch.setattr(machine, "MAX_WAIT", 0.01)
    assert not machine.wait_for_calm(0.5, said.append)
    assert said[-1] == "the load is still 3.00: measuring anyway, and noting it"


def test_sides_beside_each_other_take_turns_at_the_same_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No side begins before all are ready. Each has one moment in every turn, and together they have the requested rate."""
    for name, value in turns(tmp_path, ("plain", "redelivery")).items():
        monkeypatch.setenv(name, value)
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(lambda: list(moments("redelivery", 200, 100.0)))
        assert not ours.done()
        base = list(moments("plain", 200, 100.0))
        both = sorted([(at, "plain") for at in base] + [(at, "redelivery") for at in ours.result(60)])
    assert all({side for _, side in both[turn : turn + 2]} == {"plain", "redelivery"} for turn in range(0, 400, 2))
    assert {side for _, side in both[::2]} == {"plain", "redelivery"}
    assert 3 < both[-1][0] - both[0][0] < 5


def test_every_comparison_stands_in_the_readme() -> None:
    """With its method."""
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "benchmarks" / "README.md").read_text(), re.MULTILINE)
    named = [name.replace("…", "*") for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert [each for each in COMPARISONS if not any(fnmatch.fnmatchcase(each, name) for name in named)] == []


# running


LEAVES_A_CHILD = """
import os, sys, time
if not os.fork():
    os.setsid()
    while time.process_time() < 0.5:
        pass
    os._exit(0)
sys.exit(int(sys.argv[1]))
"""


def test_a_command_of_a_small_day_costs_what_it_leaves_behind_too() -> None:
    """The processor time includes all processes that the command started. A failed run is not a measurement."""
    said = (
        "import os, sys\nfrom benchmarks.small_day import run\n"
        f"words = [sys.executable, '-c', {LEAVES_A_CHILD!r}]\n"
        "done = run([*words, '0'], os.environ)\n"
        "assert done.processor > 0.5 and done.seconds > 0, done\n"
        "try:\n    run([*words, '3'], os.environ)\n"
        "except RuntimeError as exc:\n    print(exc.args[0][-17:])"
    )
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "'3'] ended with 3"), done.stderr


def test_the_figures_of_a_small_day_are_medians() -> None:
    """For the usual runs, and for the other runs by name."""
    runs = {"": [Run(9, 12), Run(7, 11), Run(8, 19)], "first": [Run(16, 70)]}
    assert {name: (each.value, each.unit) for name, each in figures_of(runs).items()} == {
        "seconds": (8, "s"),
        "processor": (12, "s of processor"),
        "seconds_first": (16, "s"),
        "processor_first": (70, "s of processor"),
    }


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `./dev bench`, as the script does."""
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "benchmarks", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
@pytest.mark.slow
def test_the_two_cheapest_comparisons_run(tmp_path: Path) -> None:
    """Each side is measured, and results, plots and table are written. With `--json` nothing else is printed."""
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}\n")
    sides = ("--side", "plain", "--side", "redelivery")
    done = bench("producer", "noop-threads", *sides, "--rounds", "1", "--scale", "0.01", "--json", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    producer, noop = (json.loads(done.stdout)[name] for name in ("producer", "noop-threads"))
    assert producer["sides"] == noop["sides"] == ["plain", "redelivery"]
    for side in noop["sides"]:
        assert noop["pairs"][0][side]["tasks_per_second"]["value"] > 0
        assert producer["pairs"][0][side]["delay_mean"]["value"] > 0
    assert set(read_all(tmp_path / "results")) == {"producer", "noop-threads"}
    assert (tmp_path / "plots" / "producer.svg").exists()
    assert "| tasks per second, tasks/s |" in (tmp_path / "README.md").read_text()
    assert "noop-threads: round 1 of 1, redelivery" in done.stderr
    assert "Warning" not in done.stderr


def test_sides_are_measured_beside_each_other_and_one_that_fails_ends_the_others() -> None:
    """A side waits ten minutes at most for its turn. The output of the failed side is shown."""
    comparison = replace(COMPARISONS["start-idle"], sides=("plain", "nobody"))
    began = time.monotonic()
    with pytest.raises(MeasurementError, match=r"start-idle, nobody: (.|\n)*KeyError: 'nobody'"):
        measured(comparison, Plan(rounds=1, scale=0.01), lambda _: None)
    assert time.monotonic() - began < 120


def test_wrong_words_are_refused_before_anything_is_measured() -> None:
    """It is a usage error with a hint."""
    done = bench("nop")
    assert done.returncode == 2
    assert "did you mean 'noop'?" in done.stderr
