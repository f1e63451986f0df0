"""The runbooks of `docs/runbooks/` are run on real brokers, and their screens compared with what the pages show.

`./dev python -m tests.support.runbooks [NAME…]` writes the screens anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.pages import Screen, Shell, differences, play, rewritten, shows
from tests.support.rabbit import need_rabbit
from tests.support.runbooks import BROKERS, FOLDER, shell_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each == "dead-letters" else [pytest.mark.full]) for each in BROKERS]
)
def test_a_runbook_shows_what_its_commands_print(name: str) -> None:
    """Each command ends with 0, and its screen is the one below it, but for ids, times and sizes."""
    if BROKERS[name] == "rabbitmq":
        need_rabbit()
    with shell_for(name) as shell:
        screens = play((FOLDER / f"{name}.md").read_text(), shell)
    assert len(screens) >= 3
    assert differences(screens) == []


def test_each_runbook_is_run() -> None:
    """A page that is in the folder is one that is run; the list of them is the exception."""
    assert sorted(BROKERS) == sorted(each.stem for each in FOLDER.glob("*.md") if each.name != "README.md")


def test_the_list_names_each_runbook() -> None:
    """Who is woken at night looks there."""
    text = (FOLDER / "README.md").read_text()
    assert [each for each in BROKERS if f"]({each}.md)" not in text] == []


# the runner itself


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a scratch folder."""
    shell = Shell(tmp_path, {"PATH": "/usr/bin:/bin"})
    yield shell
    shell.close()


PAGE = """\
```python
# hello.py
print("hello")
```
<!-- run: echo hidden > file -->
<!-- until: test -e file -->
```console
$ cat file
$ echo one; \\
  echo two
one
three
$ false || echo "exit code $?"
exit code 1
```
"""


def test_a_page_is_played_in_its_order(shell: Shell) -> None:
    """Files are written, hidden commands run, and each screen is told with its command."""
    screens = play(PAGE, shell)
    assert [(each.command, each.printed) for each in screens] == [
        ("cat file", "hidden\n"),
        ("echo one;    echo two", "one\ntwo\n"),
        ('false || echo "exit code $?"', "exit code 1\n"),
    ]
    assert (shell.folder / "hello.py").read_text() == 'print("hello")\n'


def test_what_differs_is_told_and_written_anew(shell: Shell) -> None:
    """Only the screens that differ change; played again, the page is right."""
    screens = play(PAGE, shell)
    assert [each.splitlines()[0] for each in differences(screens)] == ["$ cat file", "$ echo one;    echo two"]
    mended = rewritten(PAGE, screens)
    assert mended == PAGE.replace("$ cat file\n", "$ cat file\nhidden\n").replace("three\n", "two\n")
    assert differences(play(mended, shell)) == []


def test_progress_is_no_part_of_a_screen(shell: Shell) -> None:
    """A line that was written over on the way, as a slow machine has it, is left out."""
    (screen,) = play("```console\n$ printf '\\r\\033[K1 of 2\\r\\033[K2 of 2\\ndone\\n'\ndone\n```\n", shell)
    assert screen.printed == "done\n"


def test_a_command_that_fails_fails_the_page(shell: Shell) -> None:
    """Its exit code and its words are told."""
    with pytest.raises(AssertionError, match=r"ls nowhere ended with 2: .*No such file"):
        play("```console\n$ ls nowhere\n```\n", shell)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("id 9b1f6a7e-2c53-4e0d-8f11-6d2a4b7c9e01  13s ago", "id 00000000-0000-4000-8000-000000000000 2.5h ago"),
        ("2026-11-24 07:21:59Z  received", "2025-01-01 00:00:00Z  received"),
        ("a\nb\nc\n", "a\n…\nc\n"),
        ("long text\n", "long …\n"),
        ("letters  40\n\n", "letters 40"),
    ],
)
def test_what_changes_from_run_to_run_is_not_compared(printed: str, shown: str) -> None:
    """Ids, times, ages, column widths, and what `…` stands for."""
    assert shows(printed, shown)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("40 letters", "41 letters"),
        ("a\nb\n", "a\n"),
        ("a\n", "a\nb\n"),
        ("exhausted", "rejected"),
        ("", "a"),
        ("a\nb\n", "b\n…\n"),
    ],
)
def test_what_is_another_screen_is_found(printed: str, shown: str) -> None:
    """Words, numbers and lines count."""
    assert not shows(printed, shown)
    assert differences([Screen("x", shown, printed, 0, 0, 0)])
