"""The command `redelivery reconcile`, and one successful task as its input.

Import the fixture with `from tests.support.books.books_command import histories`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from redelivery.workers.cli.reconcile import reconcile
from tests.support.books.spark_session import Histories

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COMMAND", "SUCCEEDED", "arguments", "histories", "run", "run_mounted"]

COMMAND = [sys.executable, "-m", "redelivery.workers.cli.reconcile"]
SUCCEEDED = ("succeeded", {"delivery": 1, "attempt": 1})


@pytest.fixture
def histories(tmp_path: Path) -> Histories:
    """One successful task, written as the input of the job."""
    histories = Histories()
    histories.add("a", "published", SUCCEEDED)
    histories.hold("b", "queue")
    histories.write(tmp_path)
    return histories


def arguments(folder: Path, *more: str, **places: str) -> list[str]:
    named = {name: str(folder / name) for name in ("outcomes", "inventory")} | {"output": str(folder / "books")} | places
    return [*(word for name, place in named.items() for word in (f"--{name}", place)), *more]


def run_mounted(mount: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder after `mount`, in its own namespace. Without mounts the test is skipped, and fails in CI."""
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", f'{mount} && "$@"', "sh"]
    environment = os.environ | {"PATH": os.defpath}
    if subprocess.run([*mounted, "true"], cwd=folder, env=environment, capture_output=True, check=False).returncode != 0:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("nothing can be mounted here")
    command = [*mounted, *COMMAND, *arguments(folder, *more)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def run(folder: Path, *more: str, **places: str) -> Result:
    """Run the command in this process, which has a Spark session."""
    return CliRunner().invoke(reconcile, arguments(folder, *more, **places))
