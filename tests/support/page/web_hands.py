"""Two ways to use the operator's page: a real browser, with or without scripts, and plain HTTP.

A `Hand` is a user of the page, who opens an address, follows a link, sends a form, and reads the answer.
"""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from tests.support.page.web_page import TOKEN

if TYPE_CHECKING:
    from tests.support.page.browser import Browser, Page
    from tests.support.page.web_page import Answer, WebPage

__all__ = ["Forms", "Hand", "Window"]


class Hand(Protocol):
    """A user of the page. All methods but `enter` return the text of the answer."""

    def enter(self, page: WebPage) -> None:
        """Log in."""

    def open(self, path: str) -> str:
        """Open an address."""

    def again(self) -> str:
        """Reload the page."""

    def follow(self, path: str, text: str = "") -> str:
        """Follow the first link whose address begins with `path` and that has this text."""

    def send(self, path: str, **fields: str) -> str:
        """Fill in these fields of the form with this action, and send it."""


class Forms:
    """Plain HTTP: follows links and sends forms, as a browser without scripts does."""

    def enter(self, page: WebPage) -> None:
        self._visitor = page.operator()
        self.open("/")

    def open(self, path: str) -> str:
        self._path = path
        return self._now(self._visitor.get(path))

    def again(self) -> str:
        return self.open(self._path)

    def follow(self, path: str, text: str = "") -> str:
        links = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', self._answer.text, re.DOTALL)
        found = [unescape(href) for href, inside in links if unescape(href).startswith(path) and text in unescape(inside)]
        assert found, (path, text, self._answer.read)
        return self.open(found[0])

    def send(self, path: str, **fields: str) -> str:
        form = self._answer.forms(path)[0] | fields
        is_posted = re.search(rf'<form method="post" action="{re.escape(path)}', self._answer.text)
        if is_posted:
            done = self._visitor.post(path, form)
            assert done.status == 303, (done.status, done.read)
            return self.open(done.header("location"))
        return self.open(f"{path}?{urlencode({name: value for name, value in form.items() if value})}")

    def _now(self, answer: Answer) -> str:
        self._answer = answer
        assert answer.status == 200, (answer.status, answer.read)
        return answer.read


class Window:
    """A window of a real browser, with scripts enabled or not. `shown` has each page that was opened."""

    def __init__(self, browser: Browser, *, has_scripts: bool) -> None:
        self._browser, self._has_scripts = browser, has_scripts
        self._address = ""
        self.shown: list[Page] = []

    def enter(self, page: WebPage) -> None:
        self._address = page.address
        self.open(f"/login?token={TOKEN}")

    def open(self, path: str) -> str:
        self.shown.append(self._browser.open(self._address + path, width=1280, has_scripts=self._has_scripts))
        return self._read()

    def again(self) -> str:
        return self._go("location.reload()")

    def follow(self, path: str, text: str = "") -> str:
        chosen = f"each.getAttribute('href').startsWith({json.dumps(path)}) && each.innerText.includes({json.dumps(text)})"
        return self._go(f"[...document.querySelectorAll('a[href]')].find(each => {chosen}).click()")

    def send(self, path: str, **fields: str) -> str:
        form = f"[...document.forms].find(each => new URL(each.action).pathname === {json.dumps(path)})"
        return self._go(
            f"(() => {{ const form = {form}; for (const [name, value] of Object.entries({json.dumps(fields)})) "
            "form.elements[name].value = value; form.querySelector('button').click(); })()"
        )

    def _go(self, act: str) -> str:
        """Run the script, and wait for another document."""
        self._browser.ask("window.before = true")
        self._browser.ask(act)
        self._browser.await_("!window.before && document.readyState === 'complete'")
        return self._read()

    def _read(self) -> str:
        return " ".join(str(self._browser.ask("document.body.innerText")).split())
