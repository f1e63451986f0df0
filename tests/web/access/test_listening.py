"""Where the page listens: by default on the loopback and port 5151. The tests use a free port instead."""

from __future__ import annotations

import os
import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from redelivery.workers.cli.servers import web
from redelivery.workers.web import server as serving
from tests.support.page.web_page import WebPage

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from tests.support.desk import Desk
    from tests.support.servers import Server

WARNING = "it is reached from other machines over plain http: put a proxy with TLS before it"


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses on which the command would listen. Nothing is served."""
    wanted: list[tuple[str, int]] = []

    def listen(host: str, port: int) -> socket.socket:
        wanted.append((host, port))
        return socket.create_server(("127.0.0.1", 0))

    monkeypatch.setattr(web, "_listening", listen)
    monkeypatch.setattr(serving, "serve", lambda _, listening: listening.close())
    return wanted


def begun(desk: Desk, *words: str) -> Result:
    """The output of the command."""
    done = desk.run("web", *words)
    assert done.exit_code == 0, done.output
    return done


def test_by_default_it_is_on_the_loopback_and_port_5151(desk: Desk, asked_for: list[tuple[str, int]]) -> None:
    """It prints the address, a token, and that it is read-only."""
    done = begun(desk)
    assert asked_for == [("127.0.0.1", 5151)]
    assert re.fullmatch(r"redelivery web: http://127\.0\.0\.1:\d+/login\?token=[\w-]{43}\n", done.stdout), done.stdout
    assert "it may only read" in done.stderr
    assert WARNING not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_page_as_it_ends_the_other_servers(
    server: Server, folder: Path, number: signal.Signals, code: int
) -> None:
    """A service manager that stops it sees no failure."""
    environment = {**os.environ, "WEB_SHOP_BROKER": server.url}
    with WebPage("tests.support.page.web_shop", folder, env=environment) as page:
        page.process.send_signal(number)
        assert page.process.wait(20) == code, page.log


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "shop.example"])
def test_an_address_that_others_reach_is_warned_of(desk: Desk, asked_for: list[tuple[str, int]], host: str) -> None:
    """The page is served there all the same: a proxy may be in front of it."""
    done = begun(desk, "--host", host, "--port", "0")
    assert asked_for == [(host, 0)]
    assert WARNING in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_address_that_nobody_else_reaches_is_not_warned_of(desk: Desk, asked_for: list[tuple[str, int]], host: str) -> None:
    """Only this machine can reach such an address."""
    assert WARNING not in begun(desk, "--host", host).stderr
    assert asked_for == [(host, 5151)]


def test_a_port_that_is_taken_is_said_with_what_to_do(desk: Desk) -> None:
    """One line, and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = desk.run("web", "--port", str(port))
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "choose another with --host and --port" in done.stderr
