"""The agreed output of every command: `docs/screens/` is rendered again, at 80, 120 and 200 columns and piped."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from redelivery.workers.cli.main import redelivery
from tests.support.books.spark_session import spark
from tests.support.documents.screens import BOOKS, FOLDER, RABBITMQ, SCREENS, arranged, screen, shown, with_books, with_rabbitmq
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.desk import Desk
    from tests.support.rabbit import Rabbit
__all__ = ["spark"]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """The desk whose data the screens show."""
    with tempfile.TemporaryDirectory(prefix="rd-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder), binaries()["valkey"]).start()
        try:
            with arranged(server) as desk:
                yield desk
        finally:
            server.stop(9)


@pytest.mark.parametrize("name", [each for each in SCREENS if each not in BOOKS | RABBITMQ])
def test_a_screen_is_as_it_was_agreed(desk: Desk, name: str) -> None:
    """After an intended change: run `./dev python -m tests.support.documents.screens`, and check the differences."""
    assert screen(name, desk) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
def test_the_screens_of_the_books_are_as_they_were_agreed() -> None:
    """The same for the books, from fixed events and a fixed inventory."""
    with with_books():
        for name in sorted(BOOKS):
            assert screen(name) == (FOLDER / f"{name}.txt").read_text()


def test_the_screens_of_rabbitmq_are_as_they_were_agreed(rabbit: Rabbit) -> None:
    """The same for a virtual host on which RabbitMQ has dead-lettered messages by itself."""
    with with_rabbitmq(rabbit):
        for name in sorted(RABBITMQ):
            assert screen(name) == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_no_table_is_wider_than_its_screen(file: Path) -> None:
    """The terminal wraps only tracebacks, arguments, and lines for Prometheus."""
    assert file.stem in SCREENS, "no screen is of this name: ./dev python -m tests.support.documents.screens removes it"
    for width, text in re.findall(r"^--- (\d+) columns ---\n(.*?)(?=\n\n---)", file.read_text(), re.MULTILINE | re.DOTALL):
        if not file.stem.startswith(("error-", "metrics")):
            may_be = "  " if file.stem in {"dlq-show-id", "delayed-show"} else "\0"
            assert [line for line in text.splitlines() if len(line) > int(width) and not line.startswith(may_be)] == []


def test_every_command_has_a_screen() -> None:
    """So that the output of a new command is read before it is released."""

    def paths(group: click.Group, prefix: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            inner = group.get_command(context, name)
            if isinstance(inner, click.Group):
                yield from paths(inner, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}"

    written = {re.sub(r"-A shop ", "", words) for words in SCREENS.values()}
    missing = {path for path in paths(redelivery, "") if not any(f"{words} ".startswith(f"{path} ") for words in written)}
    assert missing == set()


@pytest.mark.usefixtures("desk")
def test_wide_cuts_nothing_and_colours_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--wide` works before and after the command; `NO_COLOR` and `--color never` remove colours, `always` keeps them."""
    words = ["-A", "shop", "dlq", "show", "DLQ.orders"]
    whole = "3f2a9c1e-6d0b-4f7e-9a51-0c2f6b8e4d01  shop.payments.charge_card  exhausted"
    for line in ([*words, "--wide"], ["--wide", *words]):
        assert whole in click.unstyle(shown(line, 80))
    assert "\x1b[31mexhausted" in shown(words, 80)
    assert "\x1b[" not in shown(words, None)
    assert "\x1b[31mexhausted" in shown([*words, "--color", "always"], None)
    assert "\x1b[" not in shown(["--color", "never", *words], 80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in shown(words, 80)
    assert "\x1b[31mexhausted" in shown(["--color", "always", *words], 80)
