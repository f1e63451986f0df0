"""The layers: `./dev lint` refuses imports in the wrong direction, from every layer."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("middleware", "workers", "settings")
#: A module, an import that is refused in it, and the contract that refuses it.
WRONG = [
    ("redelivery/errors.py", "from redelivery.settings import names", "The packages"),
    ("redelivery/lazily.py", "from redelivery.settings import names", "The packages"),
    ("redelivery/display.py", "from redelivery import errors", "The packages"),
    ("settings/policy.py", "from redelivery.middleware import logs", "The packages"),
    ("middleware/logs.py", "from redelivery.workers.cli import output", "The packages"),
    ("workers/letters.py", "from redelivery import testing", "The packages"),
    ("redelivery/testing.py", "from redelivery import __main__", "The packages"),
    ("middleware/logs.py", "from . import known", "The layers of middleware"),
    ("middleware/known.py", "from .messages import envelope", "The layers of middleware"),
    ("middleware/messages/envelope.py", "from ..policy import decision", "The layers of middleware"),
    ("middleware/policy/decision.py", "from .. import ports", "The layers of middleware"),
    ("middleware/ports.py", "from . import runtime", "The layers of middleware"),
    ("middleware/runtime.py", "from .transitions import outbox", "The layers of middleware"),
    ("middleware/transitions/outbox.py", "from ..child import attempt", "The layers of middleware"),
    ("middleware/child/attempt.py", "from ..worker import request", "The layers of middleware"),
    ("middleware/worker/admission.py", "from ..brokers.redis import keys", "The layers of middleware"),
    ("middleware/brokers/redis/keys.py", "from ...worker import admission", "The layers of middleware"),
    ("middleware/worker/admission.py", "from .. import install", "The layers of middleware"),
    ("middleware/brokers/redis/keys.py", "from ..rabbitmq import names", "No broker knows another"),
    ("middleware/brokers/rabbitmq/names.py", "from ..kombu import generic", "No broker knows another"),
    ("middleware/brokers/kombu/generic.py", "from ..redis import keys", "No broker knows another"),
    ("middleware/messages/envelope.py", "import amqp", "Drivers belong to brokers"),
    ("middleware/policy/decision.py", "import redis", "Drivers belong to brokers"),
    ("middleware/transitions/outbox.py", "import amqp", "Drivers belong to brokers"),
    ("middleware/child/attempt.py", "import redis", "Drivers belong to brokers"),
    ("middleware/worker/admission.py", "import redis", "Drivers belong to brokers"),
    ("workers/operations/adoption/adoption.py", "import redis", "Drivers belong to brokers"),
    ("workers/duties/duty.py", "import amqp", "Drivers belong to brokers"),
    ("workers/letters.py", "from . import ports", "The layers of workers"),
    ("workers/ports.py", "from .export import tables", "The layers of workers"),
    ("workers/export/tables.py", "from .. import brokers", "The layers of workers"),
    ("workers/brokers/__init__.py", "from ..operations import adoption", "The layers of workers"),
    ("workers/operations/adoption/adoption.py", "from ...duties import duty", "The layers of workers"),
    ("workers/duties/duty.py", "from ..reconciliation import steps", "The layers of workers"),
    ("workers/reconciliation/steps.py", "from ..duties import duty", "The layers of workers"),
    ("workers/duties/duty.py", "from ..cli import output", "The layers of workers"),
    ("workers/reconciliation/steps.py", "from ..cli import output", "The layers of workers"),
    ("workers/cli/terminal/output.py", "from ...testing import clock", "The layers of workers"),
    ("workers/reconciliation/steps.py", "import celery", "The books read files"),
    ("workers/reconciliation/steps.py", "import kombu", "The books read files"),
    ("workers/reconciliation/steps.py", "from .. import ports", "The books read files"),
    ("workers/reconciliation/steps.py", "from redelivery.settings import names", "The books read files"),
    ("middleware/policy/backoff.py", "from . import decision", "No circles"),
    ("settings/names.py", "from . import policy", "No circles"),
    ("benchmarks/processor.py", "from benchmarks import side", "No circles"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product and of the benchmarks."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in (*PACKAGES, "redelivery", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def lint(tree: Path) -> tuple[int, str]:
    """The exit code and the output of `lint-imports`."""
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_layers_are_kept(tree: Path) -> None:
    """Imports for type checkers, and imports inside functions, count too."""
    code, said = lint(tree)
    assert code == 0, said


@pytest.mark.parametrize(("module", "line", "contract"), WRONG, ids=[f"{module}: {line}" for module, line, _ in WRONG])
def test_an_import_that_points_the_wrong_way_is_refused(tree: Path, module: str, line: str, contract: str) -> None:
    """Also an import that only a type checker sees."""
    path = tree / module
    kept = path.read_text()
    try:
        path.write_text(f"{kept}\n\nif TYPE_CHECKING:\n    {line}\n")
        code, said = lint(tree)
    finally:
        path.write_text(kept)
    assert code != 0
    assert f"{contract} BROKEN" in said


def imports(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports of a file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def absolute(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an absolute import names."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [str(node.module)] if not node.level else []


def test_nothing_is_imported_by_the_bare_name_of_a_package() -> None:
    """`import settings` would import the settings of the host project."""
    paths = [
        *ROOT.glob("redelivery/*.py"),
        *(each for package in (*PACKAGES, "tests", "benchmarks") for each in (ROOT / package).rglob("*.py")),
    ]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in paths
        for node in imports(path)
        if any(name.partition(".")[0] in PACKAGES for name in absolute(node))
    ]
    assert found == []


def test_inside_a_package_imports_are_relative() -> None:
    """So an absolute import always crosses to another package."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in imports(path)
        if any(f"{name}.".startswith(f"redelivery.{package}.") for name in absolute(node))
    ]
    assert found == []


def test_the_document_shows_the_layers_and_the_files_of_a_failing_task() -> None:
    """The layers are the contract's, in its order; the picture's seven files are where the picture says, and have a line each."""
    text = (ROOT / "docs/architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each["id"] == "middleware"]
    assert re.findall(r"\w+", re.sub(r": .*?(?=$|  )", "", _block(text, "text", "install\n"), flags=re.MULTILINE)) == [
        name for layer in layers for name in layer.split(" | ")
    ]
    package, walk = "", []
    for line in _block(text, "mermaid", "flowchart").splitlines():
        if (found := re.search(r"subgraph (\w+)", line)) is not None:
            package = found[1]
        walk += [(int(number), f"{package}/{name}") for number, name in re.findall(r'"(\d) (\w+\.py)"', line)]
    listed = re.findall(r"^(\d)\. `([\w/]+\.py)`", text.partition("file by file.")[2].partition("Other files")[0], re.MULTILINE)
    assert [number for number, _ in sorted(walk)] == list(range(1, 8))
    assert [name.replace("deliveries/", "") for _, name in listed] == [name for _, name in sorted(walk)]
    assert all((ROOT / "middleware" / name).is_file() for _, name in listed)


def _block(text: str, kind: str, start: str) -> str:
    """The fenced block of this kind that begins with these words."""
    (found,) = [each for each in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if each.startswith(start)]
    return str(found)
