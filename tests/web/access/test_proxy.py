"""The login by a header, which counts only from the proxy's address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.desk import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.desk import Desk
    from tests.support.page.web_page import WebPage

HEADER = ("--trust-proxy-header", "X-Forwarded-User", "--trusted-address")


def test_a_header_of_the_proxy_is_the_login(open_page: Callable[..., WebPage], desk: Desk) -> None:
    """Without the header nobody is logged in, and the token is no login either."""
    desk.die()
    visitor = open_page(*HEADER, "127.0.0.0/8", "--allow", "redrive").visitor()
    shown = visitor.get("/letters", X_Forwarded_User="ada")
    assert (shown.status, "ada" in shown.read, LETTERS in shown.read) == (200, True, True)
    for user in ("", "  "):
        assert visitor.get("/", X_Forwarded_User=user).status == 401
    assert visitor.get("/").status == 401
    assert visitor.get("/login?token=a-token-of-the-tests-alone").status == 401


def test_the_header_of_anybody_else_is_nothing(open_page: Callable[..., WebPage]) -> None:
    """Any client that reaches the page can send such a header."""
    visitor = open_page(*HEADER, "10.1.2.3").visitor()
    assert visitor.get("/", X_Forwarded_User="ada").status == 401
    assert visitor.get("/", X_Forwarded_User="ada", X_Forwarded_For="10.1.2.3").status == 401


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trust-proxy-header", "X-User"), "belong together"),
        (("--trusted-address", "10.0.0.1"), "belong together"),
        (("--trust-proxy-header", "X-User", "--trusted-address", "proxy"), "name the proxy's address as"),
        (("--allow", "redrve"), "did you mean 'redrive'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """With a wrong option nothing is served."""
    done = desk.run("web", *words)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert said in done.stderr
