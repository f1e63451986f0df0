"""Pages that are run as they stand: their files are written, their commands executed in order, and their screens compared.

- A Python block whose first line is `# shop.py` is that file; `# at the end of shop.py` adds to it.
- A console block has commands behind `$ ` and below each of them what it prints; a command that ends in ` &` goes on beside.
- `<!-- run: … -->` is a command that the reader need not see; `<!-- until: … -->` is one that is tried until it succeeds.

A command's screen is 80 columns wide, without colours. Ids, times, sizes and workers' names differ from run to run, and are not
compared; a line of `…` stands for any lines. Every command must end with 0; `|| echo "exit code $?"` shows another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Screen", "Shell", "differences", "play", "rewritten", "shows"]

STEP = re.compile(r"^```(python|console)\n(.*?)^```$|^<!-- (until|run): (.*?) -->$", re.MULTILINE | re.DOTALL)
COLUMNS, LINES = 80, 500
#: Seconds that a command may take, and a condition to come true.
TIMEOUT = 600
END = "end-of-command"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: A command goes on behind a backslash, and up to the quote that ends a line by itself.
COMMAND = re.compile(r'^\$ (.* "\n(?:(?!").*\n)*"\n|(?:.*\\\n)*.*\n)', re.MULTILINE)
#: What differs from run to run, and the word that stands for it in a comparison. The order matters.
VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "<time>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}…?"), "<id>"),
    (re.compile(r"(/[\w.-]+){2,}"), "<path>"),
    (re.compile(r"\b[\w.-]+@[\w.-]+"), "<worker>"),
    (re.compile(r"\bJob: \d+"), "Job: <number>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|min|m|h|d|days?|hours?|minutes?|seconds?)\b( \d+[smhd]\b)?"), "<age>"),
    (re.compile(r"\b\d+(\.\d+)?\s?([kKMG]i?B|[KMG]|bytes|B)\b"), "<size>"),
    (re.compile(r"\b\d{4,}(\.\d+)?\b|\b\d+\.\d+\b|(?<=@user_script:)\d+"), "<number>"),
    (re.compile(r"[─━═-]{3,}"), "<rule>"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True, slots=True)
class Screen:
    """A command of a page, what the page shows below it, and what it printed; `start` and `end` are the place of what is shown."""

    command: str
    shown: str
    printed: str
    code: int
    start: int
    end: int


class Shell:
    """One bash with a terminal for its output; it has a process group of its own, so that its background commands end with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**environment, "COLUMNS": str(COLUMNS), "LINES": str(LINES), "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def run(self, command: str) -> tuple[int, str]:
        """Its exit code and what it printed."""
        assert self._process.stdin is not None
        beside = command.endswith(" &")
        quiet = f"{command.removesuffix('&')} >/dev/null 2>&1 </dev/null &" if beside else f"{{ {command}\n}} </dev/null"
        self._process.stdin.write(f"{quiet}\necho {END} $?\n".encode())
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> tuple[int, str]:
        seen = b""
        ending = re.compile(rb"(.*?)" + END.encode() + rb" (\d+)\r?\n", re.DOTALL)
        deadline = time.monotonic() + TIMEOUT
        while (found := ending.match(seen)) is None:
            if not select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return 1, f"{seen.decode('utf-8', 'replace')}\nno end after {TIMEOUT} s"
            try:
                more = os.read(self._screen, 65536)
            except OSError:  # what a terminal says when nobody holds its other side
                return 1, seen.decode("utf-8", "replace")
            seen += more
        said = ESCAPE.sub("", found[1].decode("utf-8", "replace")).replace("\r\n", "\n")
        return int(found[2]), re.sub(r"(?m)^.*\r.*\n?", "", said)  # a line that was written over is progress, which no page shows

    def close(self) -> None:
        """End all of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._screen)
        if self._process.stdin is not None:
            self._process.stdin.close()


def play(text: str, shell: Shell) -> list[Screen]:
    """Run a page from its first step to its last. Raises `AssertionError` where a command fails."""
    screens = []
    for step in STEP.finditer(text):
        language, block, kind, hidden = step.groups()
        if language == "python":
            _write(shell.folder, block)
        elif language == "console":
            screens += [_play(shell, *each) for each in _commands(block, step.start(2))]
        elif kind == "run":
            code, printed = shell.run(hidden)
            assert code == 0, f"{hidden}: {printed}"
        else:
            _wait(shell, hidden)
    return screens


def differences(screens: Sequence[Screen]) -> list[str]:
    """What the page shows, and is not so."""
    return [
        f"$ {each.command}\nprinted\n{each.printed}\nand not\n{each.shown}"
        for each in screens
        if not shows(each.printed, each.shown)
    ]


def rewritten(text: str, screens: Sequence[Screen]) -> str:
    """The page with what was printed, where that is something else than it shows."""
    for each in reversed(screens):
        if not shows(each.printed, each.shown):
            printed = "".join(f"{line.rstrip()}\n" for line in each.printed.strip("\n").splitlines())
            text = text[: each.start] + printed + text[each.end :]
    return text


def shows(printed: str, shown: str) -> bool:
    """Whether a screen is the one that is shown, but for what differs from run to run."""
    parts = [r"(?:.*\n)*?" if line == "…" else f"{re.escape(line).replace('…', '.*')}\n" for line in _lines(shown)]
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> Iterator[str]:
    for line in text.strip("\n").splitlines():
        for pattern, word in VOLATILE:
            line = pattern.sub(word, line)  # noqa: PLW2901 - one step after the other
        if line.strip():
            yield line.strip()


def _play(shell: Shell, command: str, shown: str, start: int, end: int) -> Screen:
    code, printed = shell.run(command)
    assert code == 0, f"{command} ended with {code}: {printed}"
    return Screen(command, shown, printed, code, start, end)


def _wait(shell: Shell, condition: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while shell.run(condition)[0]:
        logs = "".join(f"== {log.name}\n{log.read_text()[-1500:]}\n" for log in shell.folder.glob("*.log"))
        assert time.monotonic() < deadline, f"waited in vain for {condition}\n{logs}"
        time.sleep(0.1)  # another process's doing can only be looked for


def _write(folder: Path, block: str) -> None:
    title, _, text = block.partition("\n")
    if title.startswith("# at the end of "):
        with (folder / title.removeprefix("# at the end of ")).open("a") as file:
            file.write(text)
    elif re.fullmatch(r"# [\w/]+\.py", title):
        (folder / title.removeprefix("# ")).write_text(text)


def _commands(block: str, offset: int) -> Iterator[tuple[str, str, int, int]]:
    """Each command with what is shown below it, and where that stands in the page."""
    found = list(COMMAND.finditer(block))
    for this, following in zip(found, [*found[1:], None], strict=True):
        end = len(block) if following is None else following.start()
        command = this[1].replace("\\\n", " ").strip()
        yield command, block[this.end() : end], offset + this.end(), offset + end
