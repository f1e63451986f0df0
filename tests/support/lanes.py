"""Two lanes of tests: the quick one, which `./dev test` runs, and all tests, which `./dev test --full` runs.

The quick lane leaves out a test or a parameter with the mark `full` (`FULL` here), unless the command line names it by its ID
(`./dev test tests/test_x.py::test_y`). The quick lane has the same random values in every run. The full lane draws a new seed, and
prints it; `./dev test --full --seed N` uses seed N.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "FULL",
    "first_quick",
    "is_full",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "seed",
]

#: The mark of tests and parameters that only the full lane runs.
FULL = pytest.mark.full
#: The seed of every quick run.
QUICK_SEED = 1
#: The number of other tests that take as long as one slow test.
SLOW = 20
#: The variable with the seed, for test modules and the processes that they start.
VARIABLE = "TESTS_SEED"
#: The number of tests that were left out. Each worker process of pytest-xdist reports the same number.
LEFT_OUT = pytest.StashKey[int]()


def seed() -> int:
    return int(os.environ.get(VARIABLE, QUICK_SEED))


def is_full(config: pytest.Config) -> bool:
    return bool(config.option.full)


def first_quick(values: Iterable[Any]) -> list[Any]:
    """Put the first parameter into the quick lane, and the others only into the full lane.

    A tuple has the values of several parameters.
    """
    first, *others = values
    return [first, *(_in_full(each) for each in others)]


def _in_full(value: Any) -> Any:
    """The same parameter, only in the full lane."""
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=(*value.marks, FULL), id=value.id)
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=FULL)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lanes")
    group.addoption("--full", action="store_true", help="run all tests, also those with the mark `full`")
    group.addoption("--seed", type=int, help="the seed of random values (with --full a new one, which is printed; otherwise 1)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed for Hypothesis, the test modules and the worker processes of pytest-xdist.

    Hypothesis has no deadlines, because durations depend on the load of the machine.
    """
    option = config.option
    if hasattr(option, "loadscopereorder"):
        option.loadscopereorder = False  # keep the order of `_longest_first`
    if option.seed is None:
        option.seed = secrets.randbelow(10**6) if option.full else QUICK_SEED
    os.environ[VARIABLE] = str(option.seed)
    drawn = option.full or option.seed != QUICK_SEED
    if drawn and option.hypothesis_seed is None:
        option.hypothesis_seed = str(option.seed)
    settings.register_profile("lane", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not drawn)
    settings.load_profile("lane")


def pytest_report_header(config: pytest.Config) -> str:
    """Report the lane, and the command that draws the same random values."""
    return f"lane: {_again(config)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the full lane. With several processes, start the longest groups first."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if _belongs(config, item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = len(left_out)
    items[:] = _longest_first(kept) if hasattr(config, "workerinput") else kept


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the number of a worker process of pytest-xdist."""
    output = getattr(node, "workeroutput", {})  # a crashed process has no output
    node.config.stash[LEFT_OUT] = output.get("left_out", node.config.stash.get(LEFT_OUT, 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report the number of tests that were left out, or the command that draws the same random values."""
    left_out = config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"{left_out} tests are in the full lane only: ./dev test --full")
    elif is_full(config):
        terminalreporter.write_line(f"the same random values again: {_again(config)}")


def _again(config: pytest.Config) -> str:
    return f"./dev test --full --seed {config.option.seed}" if is_full(config) else "quick (./dev test --full runs all tests)"


def _belongs(config: pytest.Config, item: pytest.Item) -> bool:
    return is_full(config) or item.get_closest_marker("full") is None or _is_named(config, item)


def _longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Sort the tests by the estimated time of their group. A slow test counts as `SLOW` others."""
    times: Counter[str] = Counter()
    for item in items:
        times[_group(item)] += SLOW if item.get_closest_marker("slow") else 1
    return sorted(items, key=lambda item: -times[_group(item)])


def _group(item: pytest.Item) -> str:
    """The group of tests that one process runs, or the test alone."""
    return "_".join(sorted(str(mark.args[0]) for mark in item.iter_markers("xdist_group"))) or item.nodeid


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the command line names the test, or its function."""
    asked = [each.partition("::") for each in config.args if "::" in each]
    name = item.nodeid.partition("::")[2].partition("@")[0]
    return any(
        Path(config.invocation_params.dir, file).resolve() == item.path
        and (name == wanted or name.startswith((f"{wanted}[", f"{wanted}::")))
        for file, _, wanted in asked
    )
