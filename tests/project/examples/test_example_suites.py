"""The examples' own suites pass as users run them: in the folder of the example, with pytest alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.support.running import ROOT


def test_the_reports_test_themselves() -> None:
    """`examples/fastapi/test_reports.py`, with the fixtures of `redelivery.testing`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "REDELIVERY_", "REPORTS_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        "test_reports.py",
    ]
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    folder = ROOT / "examples" / "fastapi"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^3 passed", done.stdout, re.MULTILINE), done.stdout[-500:]


@pytest.mark.parametrize("example", ["django", "fastapi"])
def test_an_interrupted_example_ends_in_a_line(example: str) -> None:
    """With the exit code of all commands, and without a traceback."""
    command = [sys.executable, "-u", str(ROOT / "examples" / example / "run.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said.splitlines()[-1:], "Traceback" in said) == (130, ["interrupted"], False), said
