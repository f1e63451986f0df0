"""Runs the commands of documents, block by block, and compares their output with the document.

`./dev follow` runs this for the README, the tutorial, the examples, the runbooks and the page about migrating, or for the named
documents. `./dev follow --write` writes the current output into them, and draws the README's picture. On a bare machine
`python3 -m tests.support.documents.walkthrough --bare README.md` needs only Python: it installs the rest, and prints durations.

- A `python` or `toml` block with the first line `# shop.py` is that file; `# at the end of shop.py` appends to it. A block that
  begins with `# for example:` is only compiled.
- A `console` block has commands behind `$ `, and their output. `…` stands for any text. An output with a line of only `…` is never
  rewritten. Every command must end with 0; `|| echo "exit code $?"` shows another exit code.
- `<!-- until: COMMAND -->` repeats a command until it succeeds. `<!-- run: COMMAND -->` runs a command that readers do not see.
  `<!-- run by PATH -->` names the program that runs the next block instead; it compares its output with `--said COMMAND`.

Ids, times, durations and the width of columns may differ. Port 6379 stands for a free port. A `View` has the size of the terminal,
and whether stderr is compared, too; by default it is not, because progress goes there.
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing.connection
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

ROOT = Path(__file__).resolve().parents[3]
#: The documents that are followed in a new home with a clone of the repository.
DOCUMENTS = ("README.md", "docs/tutorial.md", *(f"examples/{name}/README.md" for name in ("django", "fastapi", "webhooks")))
STEP = re.compile(
    r"(?:^<!-- run by (?P<elsewhere>\S+) -->\n)?^```(?P<language>python|toml|console)\n(?P<block>.*?)^```$"
    r"|^<!-- (?P<kind>until|run): (?P<hidden>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
#: Installation commands: only a bare machine runs them, and their output is not compared.
PREPARING = re.compile(r"(python3 -m venv|\. \S+/activate|(\S*/)?pip install)\b")
COMMENT = re.compile(r"\s{2,}# .*$")
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*(\x07|\x1b\\)|[@-_])")
DURATION = (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|m|h|min)\b(\s\d+(ms|s|m)\b)*(\s\(\d+:\d\d:\d\d\))?"), "DURATION")
#: Patterns of texts that differ from run to run, and their names in a comparison.
VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b[0-9a-f]{6,40}\b(…)?"), "ID"),
    DURATION,
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?Z?|\b\d\d:\d\d(:\d\d)?([.,]\d+)?Z?"), "TIME"),
    (re.compile(r"\bin (1 file|2 files)\b"), "in FILES"),  # one file for each hour, and a run may cross a full hour
    (re.compile(r"\bfinge\w*…?"), "fingerprint"),  # a heading that is cut if the ages next to it are longer
    (re.compile(r"(\S{4})\S*(?: \S+)*…"), r"\1…"),  # a cut cell: its length depends on the width of other cells
    (re.compile(r"[─━═╌-]{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)
#: The end of a line between a date and its time of day.
BROKEN_MOMENT = re.compile(r"(?<=\d{4}-\d\d-\d\d)\n\s*(?=\d\d:\d\d)")
#: The commands of the README that its picture shows.
PICTURE_OF, PICTURED = "README.md", re.compile(r"redelivery -A shop dlq (list|causes|redrive)|redelivery reconcile")
PORT, HOST, HOME = "6379", "shop-1", "/home/you"
WIDTH, HEIGHT = 100, 40
#: The timeout of a command or a condition, in seconds: one command runs all quick tests.
TIMEOUT = 1800.0
END = "end-of-command"


@dataclass(frozen=True, slots=True)
class View:
    """A terminal, and what is compared. Patterns in `variable` are applied before `VARIABLE`."""

    width: int = WIDTH
    height: int = HEIGHT
    shows_errors: bool = False
    variable: tuple[tuple[re.Pattern[str], str], ...] = ()


class Deviation(AssertionError):
    """A command behaves differently from its document."""


@dataclass
class Command:
    """A command of a document, its expected output, and what it printed, with colours."""

    typed: str
    expected: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in ESCAPES.sub("", self.printed).rstrip().splitlines()]

    @property
    def is_compared(self) -> bool:
        return not PREPARING.search(self.typed)

    @property
    def leaves_out(self) -> bool:
        """Whether its document has a `…` that was not printed."""
        return "\n".join(self.expected).count("…") > "\n".join(self.shown).count("…")

    def is_as_said(self, view: View = View()) -> bool:
        """Whether the output is as expected, apart from variable texts and line breaks."""
        pattern = " (?:.* )?".join(text_pattern(part) for part in running_text(self.expected, view).split(" … "))
        return re.fullmatch(pattern, running_text(self.shown, view)) is not None


def text_pattern(text: str) -> str:
    """A pattern for a text in which `…` stands for any text."""
    return ".*".join(map(re.escape, text.split("…")))


def running_text(lines: Sequence[str], view: View = View()) -> str:
    """The comparable text as one line, with a space at both ends."""
    whole = BROKEN_MOMENT.sub(" ", "\n".join(lines)).splitlines()
    return DURATION[0].sub(DURATION[1], f" {' '.join(filter(None, comparable(whole, view)))} ")


def comparable(lines: Sequence[str], view: View = View()) -> list[str]:
    """The lines with names in place of variable texts."""
    found = []
    for each in lines:
        line = each
        for pattern, name in (*view.variable, *VARIABLE):
            line = pattern.sub(name, line)
        found.append(line.strip())
    return found


class Shell:
    """A bash on a terminal in the `folder`, in its own process group, so that its background processes end with it.

    `names` has texts of this run, and what documents have in their place.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        view: View = View(),
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.view, self._port = folder, view, str(free_port())
        self._names = {self._port: PORT, **(names or {}), socket.gethostname(): HOST}
        self._errors = os.memfd_create("errors")
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", view.height, view.width, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.OPOST  # keep line ends unchanged
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env={**environment, "PWD": str(folder)},
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs if view.shows_errors else self._errors,
            text=True,
            start_new_session=True,
        )
        os.close(theirs)
        self._begin(f"cd {folder}")

    def run(self, command: str) -> tuple[int, str, str]:
        """Run a command. Returns its exit code, its output, and its stderr if that is not part of the output."""
        since = os.fstat(self._errors).st_size
        code, printed = self._begin(COMMENT.sub("", command).replace(PORT, self._port))
        said = os.pread(self._errors, 10**6, since).decode(errors="replace")
        return code, self._generalised(printed), self._generalised(said)

    def _generalised(self, text: str) -> str:
        """Replace texts of this machine and this run."""
        general = text.replace("\r\n", "\n")
        for own, name in self._names.items():
            general = general.replace(own, name)
        # An overwritten line is progress, which no document shows.
        return re.sub(r"(?m)^.*\r.*\n?", "", general) if self.view.shows_errors else general

    def _begin(self, command: str) -> tuple[int, str]:
        assert self._process.stdin is not None
        redirected = f"{{ {command}\n}} </dev/null"
        if command.endswith("&"):
            redirected = f"{command.removesuffix('&')} >/dev/null 2>&1 </dev/null &"
        self._process.stdin.write(f"{redirected}\necho {END} $?\n")
        self._process.stdin.flush()
        printed, deadline = b"", time.monotonic() + TIMEOUT
        while not (ended := re.search(rf"{END} (\d+)\r?\n".encode(), printed)):
            if not multiprocessing.connection.wait([self._terminal], max(0.0, deadline - time.monotonic())):
                msg = f"{command} has not ended after {TIMEOUT:.0f} s: {printed.decode(errors='replace')}"
                raise Deviation(msg)
            try:
                printed += os.read(self._terminal, 65536)
            except OSError as exc:
                msg = f"the shell ended in {command}: {printed.decode(errors='replace')}"
                raise Deviation(msg) from exc
        return int(ended[1]), printed[: ended.start()].decode(errors="replace")

    def write(self, block: str) -> None:
        """Write a file of the document to the current folder of the shell."""
        folder = Path(self._begin("pwd")[1].strip())
        title, _, text = block.partition("\n")
        if title.startswith("# for example:"):
            compile(text, title, "exec")
            return
        name = title.removeprefix("# ").removeprefix("at the end of ")
        if not re.fullmatch(r"[\w./-]+", name):
            msg = f"a block that begins with {title!r} names no file"
            raise Deviation(msg)
        with (folder / name).open("a" if title.startswith("# at the end of ") else "w") as file:
            file.write(text.replace(PORT, self._port))

    def wait_until(self, condition: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self.run(condition)[0]:
            if time.monotonic() > deadline:
                folder = Path(self._begin("pwd")[1].strip())
                logs = "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in folder.glob("*.log"))
                msg = f"{condition} did not succeed in time{logs}"
                raise Deviation(msg)
            time.sleep(0.1)  # other processes can only be polled

    def close(self) -> None:
        """End the process group: with SIGTERM, and after three seconds with SIGKILL."""
        for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 0)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not self._is_over():
                time.sleep(0.05)
        self._process.wait()
        os.close(self._terminal)
        os.close(self._errors)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _is_over(self) -> bool:
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def shell(*, bare: bool = False) -> Iterator[Shell]:
    """A shell in `~/redelivery`, which is this repository, or a clone of it on a `bare` machine."""
    home = Path(tempfile.mkdtemp(prefix="rd-"))
    drop = ("PYTEST", "REDELIVERY_", "CELERY_", "COV", "NO_COLOR", "COLUMNS", "VIRTUAL_ENV", "PYTHON")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    environment |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    # The class archive of Spark's first run must outlive this home.
    environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment["HOME"] = str(home)
    if bare:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(home / "redelivery")], check=True)
    else:
        (home / "redelivery").symlink_to(ROOT)
        environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "DEV_NO_INSTALL": "1"}
    opened = Shell(home / "redelivery", environment, names={str(home): HOME, str(ROOT): f"{HOME}/redelivery"})
    try:
        yield opened
    finally:
        opened.close()
        shutil.rmtree(home, ignore_errors=True)


def commands(block: str) -> list[Command]:
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ ")))
        elif found and not found[-1].expected and found[-1].typed.endswith("\\"):
            found[-1].typed += f"\n{line}"
        else:
            found[-1].expected.append(line)
    return found


def follow(text: str, here: Shell, *, bare: bool = False, write: bool = False) -> tuple[str, list[Command]]:
    """Follow a document. Returns its text (with `write` the new output in it), and its commands.

    Raises `Deviation` if a command fails, or prints something unexpected without `write`.
    """
    done: list[Command] = []
    new, end = [], 0
    for step in STEP.finditer(text):
        new.append(text[end : step.start()])
        end = step.end()
        if step["kind"] == "until":
            here.wait_until(step["hidden"])
        elif step["kind"] == "run":
            carry_out(Command(step["hidden"], ["…"]), here, bare=bare, write=write)
        elif step["language"] != "console":
            here.write(step["block"])
        elif bare or not step["elsewhere"]:
            own = commands(step["block"])
            for command in own:
                carry_out(command, here, bare=bare, write=write)
            done += own
            new.append(step[0].replace(step["block"], "".join(map(as_text, own))))
            continue
        new.append(step[0])
    return "".join([*new, text[end:]]), done


def carry_out(command: Command, here: Shell, *, bare: bool, write: bool) -> None:
    """Run a command, and compare or write its output."""
    if not command.is_compared and not bare:
        return
    began = time.monotonic()
    code, command.printed, said = here.run(command.typed)
    if bare:  # the time that a reader needs
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - began:6.1f} s  {command.typed.splitlines()[0]}\n")
    if code:
        msg = f"{command.typed} ended with {code}:\n{command.printed}{said}"
        raise Deviation(msg)
    if not command.is_compared:
        return
    is_as_said = command.is_as_said(here.view)
    if not is_as_said and (not write or "…" in command.expected):
        raise Deviation(other(command))
    if write and not (is_as_said and command.leaves_out):
        command.expected = command.shown


def compare(text: str, typed: str, printed: str) -> None:
    """Compare the output of a command that another program ran with a document.

    Raises `Deviation` if they differ, or if the document has no such command.
    """
    blocks = [step["block"] for step in STEP.finditer(text) if step["language"] == "console"]
    said = [each for block in blocks for each in commands(block) if COMMENT.sub("", each.typed) == typed]
    if not said:
        msg = f"there is no command {typed}"
        raise Deviation(msg)
    for command in said:
        command.printed = printed
        if not command.is_as_said():
            raise Deviation(other(command))


def other(command: Command) -> str:
    """The printed and the expected output, for an error."""
    shown, expected = "\n".join(command.shown), "\n".join(command.expected)
    return f"{command.typed} printed\n{shown}\nand not\n{expected}"


def as_text(command: Command) -> str:
    """The command and its output as lines of a block."""
    return "".join(f"{line}\n" for line in [f"$ {command.typed}", *command.expected])


def draw(name: str, done: Sequence[Command]) -> None:
    if name == PICTURE_OF:
        from tests.support.documents.picture import write_pictures  # noqa: PLC0415 - a bare machine has no rich

        write_pictures(ROOT / "docs", [(command.typed, command.printed) for command in done])


def shell_for(name: str, *, bare: bool) -> AbstractContextManager[Shell]:
    if name in DOCUMENTS or not name.startswith("docs/"):
        return shell(bare=bare)
    from tests.support.runbooks import shell_of  # noqa: PLC0415 - a bare machine has no broker of the tests

    return shell_of(name)


def all_documents() -> list[str]:
    from tests.support.runbooks import BROKERS  # noqa: PLC0415 - as above

    return [*DOCUMENTS, *BROKERS]


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Exit code 0: the documents are right; 1: they are not."""
    parser = argparse.ArgumentParser(prog="./dev follow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", help="Markdown files, relative to the repository (all)")
    parser.add_argument("--write", action="store_true", help="write the current output below each command")
    parser.add_argument("--bare", action="store_true", help="clone and install, too, and run all blocks")
    parser.add_argument(
        "--said", metavar="COMMAND", help="run nothing: compare stdin with the output of this command in the documents"
    )
    given = parser.parse_args(words)
    if given.said:
        return _compare(given.documents, given.said, sys.stdin.read())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the shell is closed
    failed = 0
    for name in given.documents or all_documents():
        try:
            with shell_for(name, bare=given.bare) as here:
                text, done = follow((ROOT / name).read_text(), here, bare=given.bare, write=given.write)
        except Deviation as exc:
            sys.stderr.write(f"{name}: {exc}\n")
            failed = 1
            continue
        if given.write:
            (ROOT / name).write_text(text)
            draw(name, done)
        sys.stderr.write(f"{name}: as it says\n")
    return failed


def _compare(documents: Sequence[str], typed: str, printed: str) -> int:
    for name in documents:
        try:
            compare((ROOT / name).read_text(), typed, printed)
        except Deviation as exc:
            sys.stderr.write(f"{name}: {exc}\n")
            return 1
    return 0


if __name__ == "__main__":
    from tests.support.documents.walkthrough import (
        main as run,  # the module that others import, too: its `Deviation` is the one they raise
    )

    sys.exit(run())
