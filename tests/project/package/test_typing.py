"""The installed package in a user's type checker: mypy in strict mode, and pyright in standard mode.

The files in `tests/support/typing_user/` are a user's. A comment before a line says what is expected of the line: `# seen by
mypy:` or `pyright:` and the type of a `reveal_type`, `# refused by mypy:` or `pyright:` and the code of an error. Nothing else
may be reported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
USER = ROOT / "tests" / "support" / "typing_user"
EXPECTED = re.compile(r"\s*# (?:seen|refused) by (mypy|pyright): (.+)")
#: The module in front of a name, which only mypy writes.
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")
#: Both checkers use one installation.
pytestmark = pytest.mark.xdist_group("typing")

Found = Counter[tuple[str, int, str]]


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its requirements, as users have it."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    site = next((place / "venv").glob("lib/python*/site-packages"))
    wheel = next(built.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", site, wheel], check=True, capture_output=True)
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project, with the configuration of both checkers."""
    project = tmp_path_factory.mktemp("user")
    for path in sources():
        shutil.copy(path, project / path.name)
    strict = "[mypy]\nstrict = True\n[mypy-celery.*]\nignore_missing_imports = True\n"
    # Celery has no types, so its decorators are untyped for mypy.
    (project / "mypy.ini").write_text(f"{strict}[mypy-tasks]\ndisallow_untyped_decorators = False\n")
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard", "pythonVersion": "3.11"}')
    return project


def sources() -> list[Path]:
    """The user's files."""
    return sorted(USER.glob("*.py"))


def expected(checker: str) -> Found:
    """The expectations of the comments: (file, line, type or code)."""
    found: Found = Counter()
    for path in sources():
        waiting: list[str] = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            comment = EXPECTED.fullmatch(line)
            if comment is None:
                found.update((path.name, number, each) for each in waiting)
                waiting = []
            elif comment[1] == checker:
                waiting.append(comment[2])
    return found


def without_modules(type_: str) -> str:
    """A type without modules, as pyright writes it."""
    return MODULE.sub("", type_)


def of_mypy(output: str) -> Iterator[tuple[str, int, str]]:
    """What mypy reported."""
    for line in output.splitlines():
        entry = json.loads(line)
        if entry["severity"] == "error":
            yield entry["file"], entry["line"], entry["code"]
        elif (revealed := re.fullmatch(r'Revealed type is "(.+)"', entry["message"])) is not None:
            yield entry["file"], entry["line"], without_modules(revealed[1])


def of_pyright(output: str) -> Iterator[tuple[str, int, str]]:
    """What pyright reported."""
    for entry in json.loads(output)["generalDiagnostics"]:
        file, line = Path(entry["file"]).name, entry["range"]["start"]["line"] + 1
        if entry["severity"] == "error":
            yield file, line, entry.get("rule", entry["message"])
        elif (revealed := re.fullmatch(r'Type of ".+" is "(.+)"', entry["message"], re.DOTALL)) is not None:
            yield file, line, revealed[1]


def run(project: Path, *command: str | Path) -> str:
    """Run a checker; returns its output."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "MYPYPATH"}}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_mypy_strict_sees_what_a_user_wrote(project: Path, python: Path) -> None:
    """`@redeliver` keeps types, in both forms and on both sides of a task decorator. Misspelt fields and wrong types are errors."""
    files = [path.name for path in sources()]
    output = run(project, sys.executable, "-m", "mypy", "--output", "json", "--python-executable", python, *files)
    assert Counter(of_mypy(output)) == expected("mypy")


@pytest.mark.full
def test_pyright_sees_what_a_user_wrote(project: Path, python: Path) -> None:
    """The same with pyright."""
    basedpyright = Path(sys.executable).with_name("basedpyright")
    output = run(project, basedpyright, "--outputjson", "--pythonpath", python)
    assert Counter(of_pyright(output)) == expected("pyright")


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_something_is_expected(checker: str) -> None:
    """Without expectations in the comments, the tests above would prove nothing."""
    kinds = expected(checker)
    assert sum(kinds.values()) > 20


STUBBED = """
from celery import Celery, shared_task
from redelivery import Redelivery, redeliver

app = Celery("shop")
Redelivery(app)

@redeliver(max_delivery_attempts=3)
@shared_task
def above(order_id: int) -> str:
    return str(order_id)

@shared_task
@redeliver
def below(order_id: int) -> str:
    return str(order_id)

@redeliver
@app.task
def of_app(order_id: int) -> str:
    return str(order_id)

reveal_type(above)
reveal_type(below)
reveal_type(of_app)
above.delay("seven")
above.dela(7)
"""


@pytest.mark.full
def test_a_task_keeps_the_type_that_celery_types_gives_it(python: Path, tmp_path: Path) -> None:
    """With these stubs, `@redeliver` changes no type in mypy's strict mode, and `Redelivery(app)` is accepted."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    stubs = Path(sys.prefix) / "stubs"
    assert (stubs / "celery-stubs").is_dir(), "celery-types is not installed: run ./dev test, which installs what the tests need"
    beside = (stubs, next(python.parent.parent.glob("lib/python*/site-packages")), sysconfig.get_path("purelib"))
    for number, each in enumerate(beside):
        (site / f"beside{number}.pth").write_text(f"{each}\n")
    (tmp_path / "stubbed.py").write_text(STUBBED)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--output",
        "json",
        "--python-executable",
        tmp_path / "venv" / "bin" / "python",
    ]
    assert [kind for _, _, kind in of_mypy(run(tmp_path, *command, "stubbed.py"))] == [
        "Task[[order_id: int], str]",
        "Task[[order_id: int], str]",
        "Task[Any, Any]",
        "arg-type",
        "attr-defined",
    ]
