"""Fixtures: a desk on a private broker, and its page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.page.web_page import WebPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import Server

SHOP = "tests.support.page.web_shop"


@pytest.fixture
def open_page(server: Server, tmp_path: Path) -> Iterator[Callable[..., WebPage]]:
    """Start the page of that broker with these arguments; `settings` are the app's, as JSON."""
    opened: list[WebPage] = []

    def start(*words: str, settings: str = "{}") -> WebPage:
        env = {**os.environ, "WEB_SHOP_BROKER": server.url, "WEB_SHOP_SETTINGS": settings}
        opened.append(WebPage(SHOP, tmp_path, *words, env=env))
        return opened[-1]

    yield start
    for each in opened:
        each.__exit__()


@pytest.fixture
def page(open_page: Callable[..., WebPage]) -> WebPage:
    """A page that only reads."""
    return open_page()
