"""The project's wheel and source distribution, built once for all tests of a run, or before it by `.ci/run` (`TESTS_DIST`)."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import ROOT

__all__ = ["built"]

IGNORED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both files."""
    if "TESTS_DIST" in os.environ:
        return Path(os.environ["TESTS_DIST"])
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "building").open("a") as building:
        fcntl.flock(building, fcntl.LOCK_EX)  # the first process builds
        if not (shared / "dist").exists():
            _build(shared)
    return shared / "dist"


def _build(folder: Path) -> None:
    """Build both from a copy of the repository: a build writes into its source tree."""
    tree = folder / "source" / "redelivery"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, symlinks=True, ignore=IGNORED)
    unfinished = folder / "unfinished"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(unfinished), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    unfinished.rename(folder / "dist")
