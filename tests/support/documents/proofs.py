"""Proofs: a test that a document in `DOCUMENTS` names must not only exist; in a whole run it must not be skipped.

A test is named by its function, `test_…`, in whatever file it is; a test of the conformance suite is `conformance::test_…`.

A whole run is `pytest --full` without paths, names, marks, or other options that leave tests out. Nothing is checked after a run
that failed or was broken off, because one failure is enough. A test that runs on brokers of both kinds must have passed on both.
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
#: All documents whose named tests must have run.
DOCUMENTS = (DOCUMENT, DOCUMENT.with_name("proofs.md"))
NAME = re.compile(r"`(?:(conformance)::)?(test_\w+)`")
#: A broker among a test's parameters, as the conformance suite names them.
BROKER = re.compile(r"\[(?:[^\]]*-)?(valkey|redis|rabbit-classic|rabbit-quorum)(?:-|\])")
#: Options that leave tests out.
NARROWING = ("keyword", "markexpr", "lf", "stepwise", "deselect", "ignore", "ignore_glob", "collectonly")

#: The outcomes of each test, keyed by suite and name, then by the kind of broker among its parameters (empty if it has none).
_outcomes: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
_found: list[str] = []


def named(document: Path) -> list[tuple[str, str]]:
    """The tests that a document names: suite (empty, except for `conformance`) and function."""
    return sorted(set(NAME.findall(document.read_text())))


def unproved(wanted: Iterable[tuple[str, str]], outcomes: Mapping[tuple[str, str], Mapping[str, set[str]]]) -> list[str]:
    """The named tests that are not proved; for a test with parameters, one that passed on each kind of broker is enough."""
    found = []
    for each in wanted:
        for kind, seen in (outcomes.get(each) or {"": set()}).items():
            if seen <= {"skipped"}:
                name = "::".join(filter(None, each))
                found.append(f"{name} {'was skipped' if seen else 'did not run'}{kind and f' on {kind}'}")
    return found


def kind_of(nodeid: str) -> str:
    """The kind of broker among a test's parameters; empty if there is none."""
    match = BROKER.search(nodeid)
    return "" if match is None else "RabbitMQ" if match[1].startswith("rabbit") else "Redis"


def _is_whole(config: pytest.Config) -> bool:
    asked = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return asked and getattr(config.option, "full", False) and not any(getattr(config.option, name, None) for name in NARROWING)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended; xdist hands the reports of its workers to its controller."""
    path, _, rest = report.nodeid.partition("::")
    suite = "conformance" if "conformance" in path.split("/") else ""
    key = suite, rest.partition("[")[0].partition("@")[0].rpartition("::")[2]
    if report.when == "call" or report.skipped or report.failed:
        _outcomes[key][kind_of(report.nodeid)].add(report.outcome)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail a whole run that left a named test unproved."""
    config = session.config
    if hasattr(config, "workerinput") or exitstatus != pytest.ExitCode.OK or not _is_whole(config):
        return
    for document in DOCUMENTS:
        _found.extend(f"{document.name}: {each}" for each in unproved(named(document), _outcomes))
    if _found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the named tests that are not proved."""
    for each in _found:
        terminalreporter.write_line(f"UNPROVED {each}", red=True)
