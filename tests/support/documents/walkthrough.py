"""Does what documents say, block by block, and compares what each command prints with what stands below it.

`./dev follow` runs this for the README, the tutorial, the examples, the runbooks and the page about migrating, or for those that
are named behind it; `./dev follow --write` puts in what is printed now, and draws the README's picture. On a bare machine
`python3 -m tests.support.documents.walkthrough --bare README.md` needs Python alone. It installs the rest, and says how long each
command took.

- A `python` or `toml` block whose first line is `# shop.py` is that file; `# at the end of shop.py` is added to it. One that begins
  with `# never run` is only compiled.
- A `console` block has commands behind `$ `, and what they print. `…` stands for anything; what has a line of it alone is never
  written anew. Every command must end with 0; `|| echo "exit code $?"` shows another one.
- `<!-- until: COMMAND -->` tries a command until it succeeds; `<!-- run: COMMAND -->` runs one that the reader need not see;
  `<!-- run by PATH -->` says who else runs the next block; `--said COMMAND` compares what was printed there.

Ids, times, durations and the width of columns may differ. Port 6379 is a free port in truth. A `View` says how wide the terminal
is, and whether what goes to stderr is seen; where it is not, only stdout is compared, for progress goes to stderr.
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
#: What is followed in a home of its own, with a clone of the repository in it.
DOCUMENTS = ("README.md", "docs/tutorial.md", *(f"examples/{name}/README.md" for name in ("django", "fastapi", "webhooks")))
STEP = re.compile(
    r"(?:^<!-- run by (?P<elsewhere>\S+) -->\n)?^```(?P<language>python|toml|console)\n(?P<block>.*?)^```$"
    r"|^<!-- (?P<kind>until|run): (?P<hidden>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)
#: What the tests' environment has done already; only a bare machine does it. What these print is not compared.
PREPARING = re.compile(r"(python3 -m venv|\. \S+/activate|(\S*/)?pip install)\b")
COMMENT = re.compile(r"\s{2,}# .*$")
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*(\x07|\x1b\\)|[@-_])")
DURATION = (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|m|h|min)\b(\s\d+(ms|s|m)\b)*(\s\(\d+:\d\d:\d\d\))?"), "DURATION")
#: What differs from run to run, and what stands for it where two outputs are compared.
VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b[0-9a-f]{6,40}\b(…)?"), "ID"),
    DURATION,
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?Z?|\b\d\d:\d\d(:\d\d)?([.,]\d+)?Z?"), "TIME"),
    (re.compile(r"\bin (1 file|2 files)\b"), "in FILES"),  # an export writes one for each hour, and a run may cross a full one
    (re.compile(r"\bfinge\w*…?"), "fingerprint"),  # a head that is cut where the ages beside it are longer
    (re.compile(r"(\S{4})\S*(?: \S+)*…"), r"\1…"),  # a cell that is cut: where, depends on its neighbours' width
    (re.compile(r"[─━═╌-]{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)
#: The end of a line between a date and its time of day.
BROKEN_MOMENT = re.compile(r"(?<=\d{4}-\d\d-\d\d)\n\s*(?=\d\d:\d\d)")
#: The commands of the README that its picture shows.
PICTURE_OF, PICTURED = "README.md", re.compile(r"redelivery -A shop dlq (list|causes|redrive)|redelivery reconcile")
PORT, HOST, HOME = "6379", "shop-1", "/home/you"
WIDTH, HEIGHT = 100, 40
#: Seconds that a command may take, and a condition to come true: all quick tests are one command.
TIMEOUT = 1800.0
END = "end-of-command"


@dataclass(frozen=True, slots=True)
class View:
    """A terminal, and what of it is compared: `variable` differs from run to run besides `VARIABLE`, and comes first."""

    width: int = WIDTH
    height: int = HEIGHT
    shows_errors: bool = False
    variable: tuple[tuple[re.Pattern[str], str], ...] = ()


class Deviation(AssertionError):
    """A command does something other than its document says."""


@dataclass
class Command:
    """A command of a document, what is said that it prints, and what it printed, colours included."""

    typed: str
    expected: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def shown(self) -> list[str]:
        """What it printed, as lines without colours."""
        return [line.rstrip() for line in ESCAPES.sub("", self.printed).rstrip().splitlines()]

    @property
    def is_compared(self) -> bool:
        """Whether what it prints is known beforehand."""
        return not PREPARING.search(self.typed)

    @property
    def leaves_out(self) -> bool:
        """Whether its document has a `…` that it did not print."""
        return "\n".join(self.expected).count("…") > "\n".join(self.shown).count("…")

    def is_as_said(self, view: View = View()) -> bool:
        """Whether it printed what its document says, but for what differs from run to run: also where lines are broken."""
        pattern = " (?:.* )?".join(text_pattern(part) for part in running_text(self.expected, view).split(" … "))
        return re.fullmatch(pattern, running_text(self.shown, view)) is not None


def text_pattern(text: str) -> str:
    """What matches a text in which `…` stands for anything."""
    return ".*".join(map(re.escape, text.split("…")))


def running_text(lines: Sequence[str], view: View = View()) -> str:
    """All of it as one line, with a space at either end."""
    whole = BROKEN_MOMENT.sub(" ", "\n".join(lines)).splitlines()
    return DURATION[0].sub(DURATION[1], f" {' '.join(filter(None, comparable(whole, view)))} ")


def comparable(lines: Sequence[str], view: View = View()) -> list[str]:
    """The same lines without what differs from run to run."""
    found = []
    for each in lines:
        line = each
        for pattern, name in (*view.variable, *VARIABLE):
            line = pattern.sub(name, line)
        found.append(line.strip())
    return found


class Shell:
    """One bash on a terminal, in a process group of its own, so that what it left in the background ends with it.

    It begins in the `folder`; `names` says what stands in documents for a text that is this run's own.
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
        modes[1] &= ~termios.OPOST  # a line ends as it was written
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
        """Its exit code, what it printed, and what it said on stderr where that is not shown."""
        since = os.fstat(self._errors).st_size
        code, printed = self._begin(COMMENT.sub("", command).replace(PORT, self._port))
        said = os.pread(self._errors, 10**6, since).decode(errors="replace")
        return code, self._made_general(printed), self._made_general(said)

    def _made_general(self, text: str) -> str:
        """Without what is this machine's and this run's."""
        general = text.replace("\r\n", "\n")
        for own, name in self._names.items():
            general = general.replace(own, name)
        # A line that was written over on the way is progress, which no document shows.
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
        """A file of the document, in the folder where the shell is now."""
        folder = Path(self._begin("pwd")[1].strip())
        title, _, text = block.partition("\n")
        if title.startswith("# never run"):
            compile(text, title, "exec")
            return
        name = title.removeprefix("# ").removeprefix("at the end of ")
        if not re.fullmatch(r"[\w./-]+", name):
            msg = f"a block that begins with {title!r} names no file"
            raise Deviation(msg)
        with (folder / name).open("a" if title.startswith("# at the end of ") else "w") as file:
            file.write(text.replace(PORT, self._port))

    def wait_until(self, condition: str) -> None:
        """Try a command until it succeeds."""
        deadline = time.monotonic() + TIMEOUT
        while self.run(condition)[0]:
            if time.monotonic() > deadline:
                folder = Path(self._begin("pwd")[1].strip())
                logs = "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in folder.glob("*.log"))
                msg = f"waited in vain for {condition}{logs}"
                raise Deviation(msg)
            time.sleep(0.1)  # other processes' doing can only be looked for

    def close(self) -> None:
        """End all of it: first as a terminal does that is closed, then for good."""
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
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def shell(*, bare: bool = False) -> Iterator[Shell]:
    """A shell in `~/redelivery`: this repository, or a clone of it where the machine is `bare`."""
    home = Path(tempfile.mkdtemp(prefix="rd-"))
    drop = ("PYTEST", "REDELIVERY_", "CELERY_", "COV", "NO_COLOR", "COLUMNS", "VIRTUAL_ENV", "PYTHON")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    environment |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    # What is made beside Spark's first run outlives this home.
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
    """Each command of a console block, and the lines that stand below it."""
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
    """Follow a document: its text, to `write` with all that was printed, and its commands.

    So a page that is written tells of one run, as does a picture that is drawn of it.

    Raises `Deviation` where a command fails, or prints something else and is not to be written.
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
    """Run a command, and compare or take over what it prints."""
    if not command.is_compared and not bare:
        return
    began = time.monotonic()
    code, command.printed, said = here.run(command.typed)
    if bare:  # a reader's hour: what took how long
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
    """Whether a command that others ran printed what a document says.

    Raises `Deviation` where it printed something else, or the document has no such command.
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
    """What it printed, and what it should have printed."""
    shown, expected = "\n".join(command.shown), "\n".join(command.expected)
    return f"{command.typed} printed\n{shown}\nand not\n{expected}"


def as_text(command: Command) -> str:
    """As it stands in a block."""
    return "".join(f"{line}\n" for line in [f"$ {command.typed}", *command.expected])


def draw(name: str, done: Sequence[Command]) -> None:
    """The README's picture, made of what was printed."""
    if name == PICTURE_OF:
        from tests.support.documents.picture import write_pictures  # noqa: PLC0415 - a bare machine has no rich

        write_pictures(ROOT / "docs", [(command.typed, command.printed) for command in done])


def shell_for(name: str, *, bare: bool) -> AbstractContextManager[Shell]:
    """The shell that a document is followed in."""
    if name in DOCUMENTS or not name.startswith("docs/"):
        return shell(bare=bare)
    from tests.support.runbooks import shell_of  # noqa: PLC0415 - a bare machine has no broker of the tests

    return shell_of(name)


def all_documents() -> list[str]:
    """What `./dev follow` follows."""
    from tests.support.runbooks import BROKERS  # noqa: PLC0415 - as above

    return [*DOCUMENTS, *BROKERS]


def main(words: Sequence[str] | None = None) -> int:
    """The command line. Exit codes: 0 all is as the documents say, 1 it is not."""
    parser = argparse.ArgumentParser(prog="./dev follow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", help="Markdown files, from the top of the repository (all)")
    parser.add_argument("--write", action="store_true", help="write what is printed now below each command")
    parser.add_argument("--bare", action="store_true", help="clone and install, too, and leave no block to others")
    parser.add_argument("--said", metavar="COMMAND", help="run nothing: compare standard input with what stands below this command")
    given = parser.parse_args(words)
    if given.said:
        return _compare(given.documents, given.said, sys.stdin.read())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended too
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
