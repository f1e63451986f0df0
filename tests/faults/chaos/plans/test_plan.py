"""The plan of the chaos run names every step of the product: each script, each other call that changes the broker, each file.

They are looked for in the product's source, so that a new step without a boundary fails here.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.chaos.plans.page import BEGIN, END, read_kills, write
from tests.faults.chaos.plans.plan import BOUNDARIES, Plan
from tests.faults.chaos.run.faults import Faults
from tests.support.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

#: Scripts that are not a step of a message.
AN_OPERATION = "keeps an operation and moves no message: `test_operation_runs.py` kills its leaders"
NO_STEP = {
    "advance": "moves time on in its users' tests",
    **dict.fromkeys(("read_log", "read_audit", "find_events"), "changes nothing"),
    "record": "keeps a record of the audit, which is no message's outcome",
    "try_result": "a worker that starts stores a result that nobody asks for",
    **dict.fromkeys(("operation_begin", "operation_turn", "operation_report"), AN_OPERATION),
}
#: Calls that do without a script what kombu does: like kombu's own calls, they are not a step.
KOMBUS = {"middleware/brokers/redis/publishing/producer.py:_delete"}
#: Calls that change something else than messages: the function, and why a kill there loses nothing.
NO_MESSAGES = {
    **dict.fromkeys((f"workers/brokers/redis/operations.py:{name}" for name in ("turn", "unended", "_forget")), AN_OPERATION),
    "middleware/brokers/redis/publishing/producer_clock.py:_compare": "notes a clock that is wrong, for the doctor",
}
#: The functions that write files, and their steps.
FILES = {"workers/export/tables.py:_sink": "write", "workers/operations/letters/archive.py:_write_lines": "write"}
#: Packages without a message: the users' tests, the books (which read what was exported, and can be written anew), Spark's Java.
#: And kombu's files, on which no chaos runs: what is written there becomes a message when it is whole (`test_generic_messages.py`).
WITHOUT_MESSAGES = (
    "workers/testing/",
    "workers/reconciliation/",
    "workers/reconciliation/spark/java.py",
    "middleware/brokers/kombu/filesystem.py",
)
#: Commands whose names are also names in Python: they count only if they are called on a client.
ALSO_PYTHONS = {"append", "copy", "delete", "move", "rename", "restore", "set", "sort"}
CLIENTS = {"client", "_client", "pipe", "redis"}


def steps() -> set[str]:
    """The steps that the plan kills at."""
    return {each.partition(".")[0] for boundaries in BOUNDARIES.values() for each in boundaries}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the packages that handle messages: `file:function`, the name of the called function, the call."""
    for package in ("middleware", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(WITHOUT_MESSAGES):
                yield from _calls_in(ast.parse(path.read_text("utf-8")), name, "")


def _calls_in(node: ast.AST, file: str, function: str) -> Iterator[tuple[str, str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(child, ast.Call):
            called = child.func
            name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            yield f"{file}:{inner}", name, child
        yield from _calls_in(child, file, inner)


def receiver(call: ast.Call) -> str:
    """The last name of what a method is called on."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""


def test_every_script_is_a_boundary() -> None:
    """A new script without a boundary fails here, and so does a script file that nothing calls."""
    named = {call.args[0].value for _, name, call in calls() if name == "Script" and isinstance(call.args[0], ast.Constant)}
    scripts = (ROOT / "middleware" / "brokers" / "redis" / "lua").glob("*.lua")
    files = {path.stem for path in scripts if "-- Shared" not in path.read_text("utf-8")}
    assert files == named
    assert named - steps() == NO_STEP.keys()


def test_every_other_call_that_changes_the_broker_is_a_boundary(server: Server) -> None:
    """The server says which commands write; the product calls them outside its scripts only where no message moves."""
    described: Any = server.client.execute_command("COMMAND")
    writing = {name.lower() for name, facts in described.items() if "write" in map(_text, facts["flags"])}
    assert {"hset", "xadd", "zadd", "delete"} - writing == {"delete"}, "redis-py calls DEL by another name"
    writing |= {"delete", "eval", "evalsha", "fcall"}
    found = {where for where, name, call in calls() if _changes(name, call, writing)}
    assert found - KOMBUS == NO_MESSAGES.keys()


def _changes(name: str, call: ast.Call, writing: set[str]) -> bool:
    if name in {"execute_command", "send_command"}:
        return not isinstance(call.args[0], ast.Constant) or str(call.args[0].value).lower() in writing
    return name in writing and (name not in ALSO_PYTHONS or receiver(call) in CLIENTS)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_every_file_that_is_written_is_a_boundary() -> None:
    """A file that is opened for writing elsewhere would never be interrupted by a kill."""
    found = set()
    for where, name, call in calls():
        modes = {each.value for each in [*call.args, *(word.value for word in call.keywords)] if isinstance(each, ast.Constant)}
        is_opened = name == "open" and any(isinstance(mode, str) and set(mode) & set("wxa+") for mode in modes)
        if is_opened or name in {"open_output_stream", "write_bytes"}:
            found.add(where)
    assert found == FILES.keys()
    assert set(FILES.values()) <= steps()


def test_an_order_is_for_what_is_missing_most() -> None:
    """Orders go in turn to boundaries that need more hits; if none does, no process gets an order."""
    plan = Plan(1, 1, {"dispatcher:promote.before", "dispatcher:lead.after"})
    orders = [plan.next("dispatcher") for _ in range(4)]
    named = [str(order).partition(":")[0] for order in orders]
    assert set(named[:2]) == set(named[2:]) == {"promote.before", "lead.after"}
    assert plan.next("worker") is None
    plan.hit("dispatcher", "promote.before")
    assert plan.missing == ["dispatcher:lead.after"]
    assert (plan.left("dispatcher"), plan.left("worker")) == (1, 0)
    assert plan.lacks("dispatcher:lead")
    assert not plan.lacks("dispatcher:promote", "worker")
    plan.hit("dispatcher", "lead.after")
    assert plan.next("dispatcher") is None


def test_the_page_has_a_run_that_hit_every_boundary_twenty_times() -> None:
    """Of a thousand kills; a boundary that is newer than that run is marked as such, until the next run."""
    text = (ROOT / "docs" / "chaos.md").read_text("utf-8")
    (since,) = re.findall(r"^This run did not have these newer boundaries: ((?:`[^`]*`[,\s]*)+)", text, re.MULTILINE)
    kills = read_kills(text)
    names = {f"{role}:{each}" for role, boundaries in BOUNDARIES.items() for each in boundaries}
    assert {name for name in names if kills.get(name, 0) < 20} == set(re.findall(r"`([^`]+)`", since))
    assert sum(kills.values()) >= 1000


def test_a_page_takes_the_figures_of_a_run(tmp_path: Path) -> None:
    """What is written can be read back, and the rest of the page stays as it is."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n", "utf-8")
    kills = {"worker:receive.before": 7, "worker:receive.after": 8, "leave:hand_back.after": 1}
    facts = {"lives": 9, "lost": 0, "duplicated": 0, "repeats": 2, "unnamed_repeats": 0, "missing": [], "verdicts": None}
    write(
        page,
        {
            "seed": 1,
            "seconds": 60,
            "kills": 19,
            "by_boundary": {**kills, "worker:at_random": 3},
            "other_faults": {"cut": 2, "kill": 1},
            **facts,
        },
    )
    text = page.read_text("utf-8")
    assert read_kills(text) == kills
    assert "| other faults | 3: `cut` 2, `kill` 1 |" in text
    assert (text.startswith("before\n"), text.endswith("behind\n"), "old" in text) == (True, True, False)
    page.write_text("no marks", "utf-8")
    with pytest.raises(ValueError, match="no place for figures"):
        write(page, {})


def test_every_kind_of_fault_is_done_before_any_is_done_more_often_than_the_deck_has_it() -> None:
    """Each seed gives another order; a fault that is not possible now goes to the end of the deck, and is done later."""

    class Told(Faults):
        young = True

        def may(self, name: str) -> bool:
            return name != "late" or not self.young

        def __getattr__(self, name: str) -> Any:
            return lambda: None

    def drawn(seed: int) -> list[str]:
        nobody: Any = None
        faults = Told(nobody, seed, ("often", "often", "once", "late"), 0.0)
        order: list[str] = []
        for count in range(8):
            faults.young = count < 3
            before = faults.done.copy()
            faults._do_next()
            order += (faults.done - before).elements()
            assert faults.is_through == (set(order) == {"often", "once", "late"})
        return order

    orders = [drawn(seed) for seed in range(9)]
    for order in orders:
        assert sorted(order[:4]) == sorted(order[4:]) == ["late", "often", "often", "once"]
        assert order[3] == "late"
    assert len({tuple(order[4:]) for order in orders}) > 1
