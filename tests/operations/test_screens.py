"""What every command shows, as it was agreed: `docs/screens/` is rendered anew, at 80, 120 and 200 columns and piped."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from redelivery.workers.cli.main import redelivery
from tests.support.screens import FOLDER, SCREENS, arranged, screen
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.desk import Desk

#: Commands without a screen of their own here: they run until they are stopped, or write files alone, or are the books' own.
WITHOUT = {"dispatcher", "dlq import", "outcomes export", "reconcile"}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """The desk that the screens are of."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), binaries()["valkey"]).start()
        try:
            with arranged(server) as desk:
                yield desk
        finally:
            server.stop(9)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was_agreed(name: str) -> None:
    """Where it is meant to change: `./dev python -m tests.support.screens`, and look at what it has changed."""
    assert screen(name) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_no_table_is_wider_than_its_screen(file: Path) -> None:
    """Nothing is left to the terminal to wrap but a traceback, an argument, and lines for Prometheus."""
    assert file.stem in SCREENS, "no screen is of this name: ./dev python -m tests.support.screens removes it"
    for width, text in re.findall(r"^--- (\d+) columns ---\n(.*?)(?=\n\n---)", file.read_text(), re.MULTILINE | re.DOTALL):
        if not file.stem.startswith(("error-", "metrics")):
            assert [line for line in text.splitlines() if len(line) > int(width) and not line.startswith("  ")] == []


def test_every_command_has_a_screen() -> None:
    """A new one is looked at before it is shipped."""

    def paths(group: click.Group, prefix: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            inner = group.get_command(context, name)
            if isinstance(inner, click.Group):
                yield from paths(inner, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}"

    shown = {re.sub(r"-A shop ", "", words) for words in SCREENS.values()}
    missing = {path for path in paths(redelivery, "") if not any(f"{words} ".startswith(f"{path} ") for words in shown)}
    assert missing == WITHOUT
