"""The walkthrough: it reads, runs, compares and rewrites the blocks of a document."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.documents.walkthrough import ROOT, Command, Deviation, Shell, follow, main, shell
from tests.support.runbooks import VIEW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def here() -> Iterator[Shell]:
    """A shell with its own home."""
    with shell() as opened:
        yield opened


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a temporary folder, which shows screens as the runbooks do."""
    opened = Shell(tmp_path, {"PATH": "/usr/bin:/bin"}, VIEW)
    yield opened
    opened.close()


def test_what_is_printed_is_compared(here: Shell) -> None:
    """Ids, times, durations and widths may differ, and words may not."""
    said = "id 00000000-0000-4000-8000-000000000000  died 3.1s ago  at 2026-01-01 00:00:00Z"
    text = f"```console\n$ echo '{said}'\nid 11111111-1111-4111-8111-111111111111 died 12s ago at 2025-12-31 10:00:00Z\n```\n"
    assert follow(text, here)[0] == text
    with pytest.raises(Deviation, match="and not"):
        follow(text.replace("died 12s", "lives 12s"), here)


def test_a_cell_may_be_cut_elsewhere() -> None:
    """The length of its text depends on the width of the other columns."""
    cut = Command("dlq causes", ["1  ConnectionError: th…  celery"], "1  ConnectionError: the ba…  celery\n")
    assert cut.is_as_said()
    assert not Command("dlq causes", cut.expected, "1  TypeError: the ba…  celery\n").is_as_said()


def test_an_export_may_cross_a_full_hour() -> None:
    """Then it writes two files. A run of some minutes cannot write more."""
    said = Command("export", ["3 events written to books in 1 file."], "3 events written to books in 2 files.\n")
    assert said.is_as_said()
    assert not Command("export", said.expected, "3 events written to books in 3 files.\n").is_as_said()
    assert not Command("export", said.expected, "4 events written to books in 1 file.\n").is_as_said()


def test_what_is_printed_is_written(here: Shell) -> None:
    """The output of one run is written. A block with an ellipsis and the rest of the page stay."""
    text = "Before.\n\n```console\n$ echo one\n$ echo took 3 s\ntook 2 s\n$ echo two 7\ntwo …\n$ echo two\nthree\n```\n\nAfter.\n"
    new, _ = follow(text, here, write=True)
    assert new == text.replace("echo one\n", "echo one\none\n").replace("took 2 s", "took 3 s").replace("three", "two")


def test_an_ellipsis_stands_for_anything(here: Shell) -> None:
    """As a line it stands for any lines, in a line for any words. A block with such a line is not rewritten."""
    text = "```console\n$ printf 'a\\nb\\nc d e\\n'\n…\nc … e\n```\n"
    follow(text, here)
    with pytest.raises(Deviation):
        follow(text.replace("c … e", "c … f"), here, write=True)


def test_files_are_written_where_the_shell_is_and_conditions_are_waited_for(here: Shell) -> None:
    """A file, an addition to it, a background process, and a port that is replaced by a free one."""
    parts = [
        "```console\n$ mkdir ~/shop && cd ~/shop\n```",
        "```python\n# a.py\nprint(1)\n```",
        "```python\n# at the end of a.py\nprint(6379)\n```",
        "```console\n$ (cat a.py > later) &\n```",
        "<!-- until: test -s later -->",
        "```console\n$ python3 a.py\n1\n6379\n$ pwd\n/home/you/shop\n```",
    ]
    follow("\n".join(parts), here)
    assert "print(6379)" not in (here.folder.parent / "shop" / "a.py").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```console\n$ false\n```\n", "false ended with 1"),
        ("```console\n$ echo why >&2; false\n```\n", "why"),
        ("```console\n$ exit 3\n```\n", "the shell ended"),
        ("```python\nprint(1)\n```\n", "names no file"),
    ],
)
def test_what_cannot_be_done_is_named(here: Shell, text: str, why: str) -> None:
    """The error names a command that fails, a shell that ends, or a block of an unknown kind."""
    with pytest.raises(Deviation, match=why):
        follow(text, here)


def test_what_others_run_and_what_is_installed_already_is_left_out(here: Shell) -> None:
    """Installations run only on a bare machine. A block that names its test is left to that test."""
    text = "<!-- run by .ci/run -->\n```console\n$ false\n```\n```console\n$ pip install no-such-thing\n```\n"
    assert follow(text, here)[0] == text


def test_the_command_says_which_document_deviates(capsys: pytest.CaptureFixture[str], here: Shell) -> None:
    """It prints the name and ends with 1."""
    path = here.folder.parent / "wrong.md"
    path.write_text("```console\n$ echo right\nwrong\n```\n")
    assert main([str(path)]) == 1
    assert "wrong.md: echo right printed" in capsys.readouterr().err
    assert main(["--write", str(path)]) == 0
    assert path.read_text() == "```console\n$ echo right\nright\n```\n"


DEMO = """\
<!-- run by .ci/run -->
```console
$ ./dev demo    # kills; then a check
…
  lost                             0

  books        balanced
…
```
"""


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("   0.0 s  starting\n\n  duplicated  0   8 may have\n  lost      0\n\n  books   balanced\n  took     75.3 s\n", 0),
        ("   0.0 s  starting\n  lost      1\n\n  books   DO NOT BALANCE\n", 1),
        ("   0.0 s  starting\n  lost      0\n", 1),
        ("", 1),
    ],
)
def test_what_others_ran_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Shell, printed: str, code: int
) -> None:
    """The output of another run comes on standard input, and no command runs."""
    path = here.folder.parent / "demo.md"
    path.write_text(DEMO)
    monkeypatch.setattr("sys.stdin", io.StringIO(printed))
    assert main(["--said", "./dev demo", str(path)]) == code
    assert ("demo.md: ./dev demo    # kills; then a check printed" in capsys.readouterr().err) is bool(code)


def test_what_others_ran_must_stand_in_the_document(here: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """A document without that command is an error, because nothing would be compared."""
    path = here.folder.parent / "demo.md"
    path.write_text(DEMO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(""))
        assert main(["--said", "./dev dmeo", str(path)]) == 1
    assert capsys.readouterr().err == f"{path}: there is no command ./dev dmeo\n"


BARE = """\
```console
$ pwd
/home/you/redelivery
$ git status --short
$ mkdir ~/shop && cd ~/shop
$ python3 -m venv --without-pip .venv && . .venv/bin/activate
$ python -c 'import sys; print(sys.prefix)'
/home/you/shop/.venv
```
<!-- run by others -->
```console
$ python -c 'import celery' 2>/dev/null || echo "exit code $?"
exit code 1
```
"""


def test_on_a_bare_machine_a_clone_is_followed_with_pythons_own_modules_alone(tmp_path: Path) -> None:
    """All blocks run, in an environment that the document creates. The output has the time of each command."""
    (tmp_path / "bare.md").write_text(BARE)
    command = [sys.executable, "-S", "-m", "tests.support.documents.walkthrough", "--bare", str(tmp_path / "bare.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    *timed, last = done.stderr.splitlines()
    assert last == f"{tmp_path}/bare.md: as it says"
    timed = [re.sub(r"^\d\d:\d\d:\d\d +\d+\.\d s  ", "$ ", line) for line in timed]
    assert timed == [line for line in BARE.splitlines() if line.startswith("$ ")]


def test_colours_are_kept_for_the_picture_alone() -> None:
    """The document has no colours."""
    assert Command("dlq list", printed="\x1b[1;31mlost\x1b[0m  1  \n").shown == ["lost  1"]


PAGE = """\
```python
# hello.py
print("hello")
```
<!-- run: echo hidden > file -->
<!-- until: test -e file -->
```console
$ cat file
hidden
$ echo one; \\
  echo two >&2
one
three
$ false || echo "exit code $?"
exit code 1
```
```python
# for example: it needs another app
raise RuntimeError
```
"""


def test_a_page_is_played_in_its_order(scratch: Shell) -> None:
    """Files are written, hidden commands run, and screens include stderr. Only changed screens are rewritten."""
    new, done = follow(PAGE, scratch, write=True)
    assert new == PAGE.replace("three\n", "two\n")
    assert [each.shown for each in done] == [["hidden"], ["one", "two"], ["exit code 1"]]
    assert (scratch.folder / "hello.py").read_text() == 'print("hello")\n'
    assert follow(new, scratch)[0] == new


def test_what_is_only_an_example_must_be_python(scratch: Shell) -> None:
    """Such a block is only compiled."""
    with pytest.raises(SyntaxError):
        follow("```python\n# for example: a part\ndef\n```\n", scratch)


def test_progress_is_no_part_of_a_screen(scratch: Shell) -> None:
    """A line that is overwritten (on a slow machine) is left out."""
    text = "```console\n$ printf '\\r\\033[K1 of 2\\r\\033[K2 of 2\\ndone\\n'\ndone\n```\n"
    assert follow(text, scratch)[0] == text


def test_a_command_that_fails_fails_the_page(scratch: Shell) -> None:
    """The error has the exit code and the output of the command."""
    with pytest.raises(Deviation, match=re.compile(r"ls nowhere ended with 2:.*No such file", re.DOTALL)):
        follow("```console\n$ ls nowhere\n```\n", scratch)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("id 9b1f6a7e-2c53-4e0d-8f11-6d2a4b7c9e01  13s ago", "id 00000000-0000-4000-8000-000000000000 2.5h ago"),
        ("2026-11-24 07:21:59Z  received", "2025-01-01 00:00:00Z  received"),
        ("died at 2026-11-25\n03:18:40.887 UTC", "died at\n2026-11-24 11:28:18.862 UTC"),
        ("died at 2026-11-25\n03:18:40.887 UTC", "died at 2026-11-24\n11:28:18.862 UTC"),
        ("a\nb\nc", "a\n…\nc"),
        ("long text", "long …"),
        ("letters  40\n\n", "letters 40"),
    ],
)
def test_what_changes_from_run_to_run_is_not_compared(printed: str, said: str) -> None:
    """Ids, times, ages, column widths, and any text for `…`."""
    assert Command("x", said.splitlines(), printed).is_as_said(VIEW)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("40 letters", "41 letters"),
        ("a\nb\n", "a"),
        ("a\n", "a\nb"),
        ("exhausted", "rejected"),
        ("", "a"),
        ("a\nb\n", "b\n…"),
    ],
)
def test_what_is_another_screen_is_found(printed: str, said: str) -> None:
    """Other words, numbers or lines are a difference."""
    assert not Command("x", said.splitlines(), printed).is_as_said(VIEW)
