"""`docs/parity.md`: each feature of three brokers and of other libraries has an answer, and a test that proves it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from redelivery.settings import UNLIMITED, RedeliverySettings
from tests.support.documents.proofs import DOCUMENT, DOCUMENTS, NAME, kind_of, named, unproved

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| \*?\*?([A-Z]\d+(?:, [A-Z]\d+)*) ", re.MULTILINE)
ROWS = [*(f"A{n}" for n in range(1, 19)), *(f"S{n}" for n in range(1, 13)), *(f"R{n}" for n in range(1, 16))]
ADDED = [f"L{n}" for n in range(1, 18)]


def rows() -> dict[str, list[str]]:
    """The cells of each row, by its name."""
    found: dict[str, list[str]] = {}
    for line in DOCUMENT.read_text().splitlines():
        match = ROW.match(line)
        for name in match[1].split(", ") if match else ():
            assert name not in found, f"{name} stands twice"
            found[name] = [cell.strip() for cell in line.strip("|").split(" | ")]
    return found


def test_every_row_of_the_checklist_is_there() -> None:
    """The features of Artemis, Solace, RabbitMQ and other libraries, each once."""
    assert sorted(rows()) == sorted([*ROWS, *ADDED])


def test_each_row_names_its_proof_on_either_broker_or_says_that_it_is_open() -> None:
    """No row is claimed without a test."""
    for name, cells in rows().items():
        assert len(cells) == 5, name
        for cell in cells[2:4]:
            assert NAME.search(cell) or cell == "open", name
            assert cell != "open" or cells[4], f"{name} is open, and does not say why"


@cache
def functions() -> dict[tuple[str, str], list[ast.FunctionDef]]:
    """All tests, by suite and name."""
    found: dict[tuple[str, str], list[ast.FunctionDef]] = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        suite = "conformance" if "conformance" in path.parts else ""
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found[suite, node.name].append(node)
    return found


@pytest.mark.parametrize(("suite", "name"), sorted({each for document in DOCUMENTS for each in named(document)}))
@pytest.mark.xdist_group("parity")
def test_a_test_that_is_named_exists(suite: str, name: str) -> None:
    """It is one function that pytest collects, without an unconditional skip."""
    [found] = functions()[suite, name]
    marks = [ast.unparse(mark) for mark in found.decorator_list]
    assert not [mark for mark in marks if re.match(r"pytest\.mark\.(skip\b|xfail)", mark)]


def test_skipped_or_not_run_is_unproved() -> None:
    """A test with parameters is proved if one of them passes. Failures are reported anyway."""
    outcomes: dict[tuple[str, str], dict[str, set[str]]] = {
        ("", "b"): {"": {"skipped"}},
        ("", "c"): {"": {"skipped", "passed"}},
        ("", "d"): {"": {"failed"}},
        ("", "e"): {"": {"passed"}},
        ("conformance", "g"): {"Redis": {"skipped", "passed"}, "RabbitMQ": {"skipped"}},
        ("conformance", "h"): {"Redis": {"passed"}, "RabbitMQ": {"skipped", "passed"}},
    }
    wanted = [*(("", name) for name in "bcdef"), *(("conformance", name) for name in "gh")]
    assert unproved(wanted, outcomes) == ["b was skipped", "f did not run", "conformance::g was skipped on RabbitMQ"]


@pytest.mark.parametrize(
    ("nodeid", "kind"),
    [
        ("tests/test_x.py::test_y", ""),
        ("tests/test_x.py::test_y[redis]", "Redis"),
        ("tests/conformance/test_x.py::test_y[valkey-1.4 s-1.4]@conformance-valkey", "Redis"),
        ("tests/conformance/test_x.py::test_y[rabbit-quorum-a]@conformance-rabbit-quorum", "RabbitMQ"),
        ("tests/conformance/test_x.py::test_y[prefork-rabbit-classic]", "RabbitMQ"),
        ("tests/test_x.py::test_y[redistribution]", ""),
    ],
)
def test_the_kind_of_a_tests_broker_is_told_by_its_parameters(nodeid: str, kind: str) -> None:
    """Its position among the parameters, and the group of the test, do not matter."""
    assert kind_of(nodeid) == kind


SUITE = """
import pytest

@pytest.mark.parametrize("kind", ["one", "two"])
@pytest.mark.xdist_group("g")
def test_either(kind):
    if kind == "two":
        pytest.skip("no such server")

def test_skipped():
    pytest.skip("no server")

def test_fails():
    assert {fine}
"""


@pytest.mark.parametrize(
    ("fine", "table", "words", "code", "findings"),
    [
        (True, "test_either test_skipped", ("--full",), 1, ["was skipped"]),
        (True, "test_either test_skipped", ("--full", "-p", "xdist", "-n", "2", "--dist", "loadgroup"), 1, ["was skipped"]),
        (True, "test_either test_gone", ("--full",), 1, ["did not run"]),
        (True, "test_either", ("--full",), 0, []),
        (True, "test_skipped", (), 0, []),
        (True, "test_skipped", ("--full", "-k", "either"), 0, []),
        (True, "test_skipped", ("--full", "suite/test_it.py"), 0, []),
        (False, "test_skipped test_fails", ("--full",), 1, []),
    ],
)
def test_a_whole_run_fails_where_a_named_test_was_skipped(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fine: bool,
    table: str,
    words: tuple[str, ...],
    code: int,
    findings: list[str],
) -> None:
    """Also in several processes. Not in the quick lane, for a part of the tests, or after a failure."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a new process takes long to start
    pytester.makeconftest(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        import tests.support.documents.proofs
        from tests.support.lanes import pytest_addoption
        from tests.support.documents.proofs import pytest_runtest_logreport, pytest_sessionfinish, pytest_terminal_summary
        tests.support.documents.proofs.DOCUMENTS = (Path({str(pytester.path)!r}) / "parity.md",)
        """
    )
    pytester.makeini("[pytest]\ntestpaths = suite\naddopts = --import-mode=importlib\nmarkers = xdist_group: x")
    (pytester.path / "suite").mkdir()
    (pytester.path / "suite" / "test_it.py").write_text(SUITE.format(fine=fine))
    (pytester.path / "parity.md").write_text(" ".join(f"`{name}`" for name in table.split()))
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", *words)
    assert done.ret == code
    assert [line.split()[-2:] for line in done.outlines if line.startswith("UNPROVED")] == [each.split()[-2:] for each in findings]


# rows that no other test proves


def test_one_queue_has_no_limit_where_all_others_have_theirs() -> None:
    """A9: a DLQ and ten attempts for all queues. One queue has no limit, and keeps all other settings."""
    settings = RedeliverySettings.load(
        {"queues": {"#": {"max_delivery_attempts": 10, "dead_letter_queue": "dead"}, "queue.no": {"max_delivery_attempts": -1}}}
    )
    found = {queue: settings.policy_for(queue).policy for queue in ("queue.no", "queue.yes")}
    assert {queue: each.max_delivery_attempts for queue, each in found.items()} == {"queue.no": UNLIMITED, "queue.yes": 10}
    assert {each.dead_letter_queue_for(queue) for queue, each in found.items()} == {"dead"}


def test_a_dead_letter_queue_is_named_by_prefix_and_suffix() -> None:
    """A11: Artemis's own example, an empty prefix and the suffix `.DLQ`."""
    rows = {"#": {"dead_letter_queue_prefix": "", "dead_letter_queue_suffix": ".DLQ"}}
    assert RedeliverySettings.load({"queues": rows}).policy_for("orders").policy.dead_letter_queue_for("orders") == "orders.DLQ"
    assert RedeliverySettings.load({}).policy_for("orders").policy.dead_letter_queue_for("orders") == "DLQ.orders"
