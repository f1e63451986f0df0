"""An application of 24 tasks, with Django, canvas and base classes of its own: its unchanged tests pass with two lines added."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.lanes import FULL
from tests.support.running import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LEGACY = ROOT / "tests" / "support" / "legacy"
TESTS = 29


@pytest.mark.parametrize("redelivery", [pytest.param("", id="plain", marks=FULL), pytest.param("1", id="with two lines")])
def test_the_applications_own_tests_pass(tmp_path: Path, redelivery: str) -> None:
    """They run with a real worker, also without redelivery, which proves that they test Celery's behaviour and not ours."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "REDELIVERY_", "STORE_"))}
    log = tmp_path / "worker.log"
    environment |= {"STORE_REDELIVERY": redelivery, "STORE_LOG": str(log), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(LEGACY / "pytest.ini"), "--rootdir", str(LEGACY)]
    command.append(str(LEGACY / "suite.py"))
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(rf"^{TESTS} passed", done.stdout, re.MULTILINE), done.stdout[-500:]
    assert ("event=worker.started" in log.read_text()) is bool(redelivery)


def test_the_two_lines_are_all_that_is_added() -> None:
    """No other line in the application's folder mentions redelivery."""
    said = [line.strip() for path in LEGACY.rglob("*.py") for line in path.read_text().splitlines() if "edelivery" in line]
    code = [line for line in said if not line.startswith(('"""', "if ", "With "))]
    assert len(code) == 2, code
