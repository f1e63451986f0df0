"""`docs/migrating.md` is run as it stands: its files written, its commands executed in order, its output compared.

A Python block names its file in a comment on its first line; a console block has commands behind `$ ` and what they print, where
`…` stands for anything; a comment `<!-- until: … -->` is a command that is tried until it succeeds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.running import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

DOCUMENT = ROOT / "docs" / "migrating.md"
STEP = re.compile(r"^```(python|console)\n(.*?)^```$|^<!-- until: (.*?) -->$", re.MULTILINE | re.DOTALL)
TIMEOUT = 120
END = "end-of-command"


class Shell:
    """One bash, in a process group of its own, so that what it left in the background ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Its exit code and what it printed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        quiet = f"{command.removesuffix('&')} >/dev/null 2>&1 </dev/null &" if command.endswith("&") else f"{command} </dev/null"
        stdin.write(f"{quiet}\necho {END} $?\n")
        stdin.flush()
        printed: list[str] = []
        for line in stdout:
            if line.startswith(END):
                return int(line.split()[1]), "".join(printed)
            printed.append(line)
        return 1, "".join(printed)

    def close(self) -> None:
        """End all of it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Iterator[Shell]:
    """In a scratch folder, with the commands of this environment and a private broker."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("REDELIVERY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {"SHOP_BROKER": server.url, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    shell = Shell(tmp_path, environment)
    yield shell
    shell.close()


def write(folder: Path, block: str) -> None:
    """A file of the document."""
    title, _, text = block.partition("\n")
    if title.startswith("# never run"):
        compile(text, title, "exec")
    elif title.startswith("# at the end of "):
        with (folder / title.removeprefix("# at the end of ")).open("a") as file:
            file.write(text)
    else:
        (folder / title.removeprefix("# ")).write_text(text)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command, and the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    yield from found


def shows(printed: str, expected: list[str]) -> bool:
    """Whether these lines were printed, in this order; a line of `…` alone stands for any number of lines."""
    parts = [".*" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) for line in expected]
    pattern = "\n".join(parts).replace(".*\n", "(?s:.*)")
    return re.search(re.sub(r"(\\ )+", r"\\s+", pattern), printed) is not None


@pytest.mark.full
@pytest.mark.slow
def test_the_document_is_run_from_its_first_command_to_its_last(shell: Shell, tmp_path: Path) -> None:
    """From plain Celery through observing to our workers, and back; with messages in the queue all the time."""
    steps = list(STEP.finditer(DOCUMENT.read_text()))
    assert len(steps) > 20
    for step in steps:
        language, block, condition = step.groups()
        if condition is not None:
            deadline = time.monotonic() + TIMEOUT
            while shell.run(condition)[0]:
                logs = "".join(f"== {log.name}\n{log.read_text()[-1500:]}\n" for log in tmp_path.glob("*.log"))
                assert time.monotonic() < deadline, f"waited in vain for {condition}\n{logs}"
                time.sleep(0.1)
        elif language == "python":
            write(tmp_path, block)
        else:
            for command, expected in commands(block):
                code, printed = shell.run(command)
                assert code == 0, f"{command}: {printed}"
                assert shows(printed, expected), f"{command} printed\n{printed}\nand not\n{expected}"
    assert sorted(set((tmp_path / "charged").read_text().split()), key=int) == ["1", "3", "5", "13"]
    assert (tmp_path / "shipped").read_text().split() == ["1", "4"]
