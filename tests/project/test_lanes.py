"""The two lanes of tests: the quick lane says what it leaves out, and a full run can be repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lanes import first_quick

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

SUITE = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.lanes import first_quick, seed

@pytest.mark.full
def test_storm():
    pass

@pytest.mark.parametrize("pool", first_quick(["prefork", "threads", "solo"]))
def test_each(pool):
    pass

@pytest.mark.slow
def test_late():
    print("seed", seed())

@settings(max_examples=5)
@given(st.integers())
def test_drawn(number):
    print("drawn", number)
"""

SPREAD = ("-p", "xdist", "-n", "2", "--dist", "loadgroup")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the same lanes."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a new process takes long to start
    monkeypatch.delenv("TESTS_SEED")
    own = (ROOT / "conftest.py").read_text()
    pytester.makeconftest(own.replace("from tests", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests", 1))
    pytester.makeini(
        "[pytest]\ntestpaths = suite\naddopts = --import-mode=importlib --strict-markers\nmarkers =\n    full\n    slow"
    )
    (pytester.path / "suite").mkdir()
    (pytester.path / "suite" / "test_it.py").write_text(SUITE)
    return pytester


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Run the suite with Hypothesis."""
    return suite.runpytest_subprocess("-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "-s", "-v", *words)


@pytest.mark.parametrize("how", [(), SPREAD], ids=["one-process", "spread"])
def test_the_quick_lane_leaves_out_what_is_marked_and_says_how_many(suite: pytest.Pytester, how: tuple[str, ...]) -> None:
    """Whole tests and single parameters. The output says that tests were left out."""
    done = run(suite, *how)
    done.assert_outcomes(passed=3, deselected=None if how else 3)
    done.stdout.fnmatch_lines(["3 tests are in the full lane only: ./dev test --full"])


@pytest.mark.parametrize("how", [(), SPREAD], ids=["one-process", "spread"])
def test_the_full_lane_runs_all_and_prints_its_seed(suite: pytest.Pytester, how: tuple[str, ...]) -> None:
    """The end of the output has the command that draws the same values again."""
    done = run(suite, "--full", *how)
    done.assert_outcomes(passed=6)
    assert "full lane only" not in done.stdout.str()
    assert re.search(r"^the same random values again: \./dev test --full --seed \d+$", done.stdout.str(), re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "ran", "left_out"),
    [("::test_storm", 1, 0), ("::test_each", 3, 0), ("::test_each[solo]", 1, 0), ("", 3, 3)],
)
def test_a_test_that_is_named_runs_in_either_lane(suite: pytest.Pytester, name: str, ran: int, left_out: int) -> None:
    """Named by its own ID or that of its function. The name of a file is not enough."""
    run(suite, f"suite/test_it.py{name}").assert_outcomes(passed=ran, deselected=left_out)


def lines_of(done: pytest.RunResult) -> list[str]:
    """The seed and the drawn values of a run."""
    return re.findall(r"(?:seed|drawn) (-?\d+)$", done.stdout.str(), re.MULTILINE)


def test_a_quick_run_draws_the_same_and_a_full_one_something_new_that_can_be_repeated(suite: pytest.Pytester) -> None:
    """The printed seed repeats a full run."""
    assert lines_of(run(suite)) == lines_of(run(suite))
    first, second = run(suite, "--full"), run(suite, "--full")
    assert lines_of(first) != lines_of(second)
    again = re.search(r"--seed (\d+)", first.stdout.str())
    assert again is not None
    assert lines_of(run(suite, "--full", "--seed", again[1])) == lines_of(first)


def test_slow_tests_are_started_first(suite: pytest.Pytester) -> None:
    """So no slow test runs alone at the end."""
    done = run(suite, "-p", "xdist", "-n", "1", "--dist", "loadgroup")
    assert re.findall(r"PASSED.*::(test_\w+)", done.stdout.str())[0] == "test_late"


GROUPS = """
import pytest

@pytest.mark.parametrize("number", range(15))
@pytest.mark.xdist_group("many")
def test_many(number):
    pass

@pytest.mark.slow
@pytest.mark.xdist_group("few")
def test_few():
    pass

@pytest.mark.xdist_group("few")
def test_few_more():
    pass
"""


def test_a_group_with_slow_tests_is_started_before_a_larger_one(suite: pytest.Pytester) -> None:
    """The weights of a group's tests are added, and a slow test weighs as much as many others. So slow tests do not end last."""
    (suite.path / "suite" / "test_later.py").write_text(GROUPS)
    done = run(suite, "-p", "xdist", "-n", "1", "--dist", "loadgroup")
    names = re.findall(r"PASSED.*::(test_\w+)", done.stdout.str())
    assert names[:3] == ["test_few", "test_few_more", "test_late"]
    assert names[3:18] == ["test_many"] * 15


def test_parameters_keep_their_ids_and_marks() -> None:
    """Only the mark of the lane is added."""
    grouped = pytest.param("a", marks=pytest.mark.xdist_group("g"), id="one")
    first, second, third = first_quick([grouped, grouped, ("b", 1)])
    assert first is grouped
    assert (second.values, second.id, [mark.name for mark in second.marks]) == (("a",), "one", ["xdist_group", "full"])
    assert third.values == ("b", 1)
