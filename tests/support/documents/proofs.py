"""Proofs: a complete run must not skip a test that a document in `DOCUMENTS` names.

Documents name a test by its function, `test_…`, without its file; a test of the conformance suite is `conformance::test_…`.

A complete run is `pytest --full` without paths, names, marks, or other options that leave tests out. A run that failed or was
interrupted is not checked. A test that runs on both kinds of brokers must have passed on both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "DOCUMENT",
    "DOCUMENTS",
    "named",
    "pytest_runtest_logreport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "unproved",
]

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "parity.md"
#: The documents that name tests.
DOCUMENTS = (DOCUMENT, DOCUMENT.with_name("proofs.md"))
NAME = re.compile(r"`(?:(conformance)::)?(test_\w+)`")
#: The broker in the parameters of a test of the conformance suite.
BROKER = re.compile(r"\[(?:[^\]]*-)?(valkey|redis|rabbit-classic|rabbit-quorum)(?:-|\])")
#: Options that leave tests out.
NARROWING = ("keyword", "markexpr", "lf", "stepwise", "deselect", "ignore", "ignore_glob", "collectonly")

#: The outcomes of each test by suite and name, and then by the kind of broker in its parameters (or empty).
_outcomes: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
_found: list[str] = []


def named(document: Path) -> list[tuple[str, str]]:
    """The tests that a document names: suite (`conformance` or empty) and function."""
    return sorted(set(NAME.findall(document.read_text())))


def unproved(wanted: Iterable[tuple[str, str]], outcomes: Mapping[tuple[str, str], Mapping[str, set[str]]]) -> list[str]:
    """The named tests that were skipped or did not run. One passed parameter for each kind of broker is enough."""
    found = []
    for each in wanted:
        for kind, seen in (outcomes.get(each) or {"": set()}).items():
            if seen <= {"skipped"}:
                name = "::".join(filter(None, each))
                found.append(f"{name} {'was skipped' if seen else 'did not run'}{kind and f' on {kind}'}")
    return found


def kind_of(nodeid: str) -> str:
    """The kind of broker in a test's parameters; empty if there is none."""
    match = BROKER.search(nodeid)
    return "" if match is None else "RabbitMQ" if match[1].startswith("rabbit") else "Redis"


def _is_complete(config: pytest.Config) -> bool:
    asked = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return asked and getattr(config.option, "full", False) and not any(getattr(config.option, name, None) for name in NARROWING)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test. The controller of xdist gets the reports of its workers."""
    path, _, rest = report.nodeid.partition("::")
    suite = "conformance" if "conformance" in path.split("/") else ""
    key = suite, rest.partition("[")[0].partition("@")[0].rpartition("::")[2]
    if report.when == "call" or report.skipped or report.failed:
        _outcomes[key][kind_of(report.nodeid)].add(report.outcome)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail a complete run that skipped a named test."""
    config = session.config
    if hasattr(config, "workerinput") or exitstatus != pytest.ExitCode.OK or not _is_complete(config):
        return
    for document in DOCUMENTS:
        _found.extend(f"{document.name}: {each}" for each in unproved(named(document), _outcomes))
    if _found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the named tests that were skipped."""
    for each in _found:
        terminalreporter.write_line(f"UNPROVED {each}", red=True)
