"""The operator's page in its own process, and a client over plain HTTP, like a browser without scripts."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["TOKEN", "Answer", "Visitor", "WebPage"]

TOKEN = "a-token-of-the-tests-alone"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    headers: list[tuple[str, str]]
    text: str

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    @property
    def read(self) -> str:
        """The text that a person reads, without tags."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", self.text))).strip()

    def links(self, beginning: str) -> list[str]:
        """The addresses of its links with this beginning."""
        return [unescape(each) for each in re.findall(r'href="([^"]*)"', self.text) if unescape(each).startswith(beginning)]

    def forms(self, action: str) -> list[dict[str, str]]:
        """The fields of its forms with this action, with their initial values. Query parameters of the action are fields, too."""
        found = []
        for opening, inside in re.findall(r"<form([^>]*)>(.*?)</form>", self.text, re.DOTALL):
            if unescape(_attribute(opening, "action")).partition("?")[0] == action:
                fields = {
                    _attribute(each, "name"): unescape(_attribute(each, "value"))
                    for each in re.findall(r"<(?:input|button)([^>]*)>", inside)
                    if 'type="checkbox"' not in each  # initially not ticked
                }
                texts = re.findall(r"<textarea([^>]*)>(.*?)</textarea>", inside, re.DOTALL)
                fields |= {_attribute(each, "name"): unescape(text).removeprefix("\n") for each, text in texts}
                fields |= dict(parse_qsl(unescape(_attribute(opening, "action")).partition("?")[2]))
                found.append({name: value for name, value in fields.items() if name})
        return found


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', tag)
    return "" if found is None else found[1]


@dataclass
class Visitor:
    """A client with its own cookies."""

    port: int
    host: str = "127.0.0.1"
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Send a form, as a browser on the page does."""
        given = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin", **headers}
        return self.ask("POST", path, urlencode(form).encode(), headers=given)

    def follow(self, answer: Answer) -> Answer:
        """Follow the redirect of an answer."""
        assert answer.status == 303, (answer.status, answer.read)
        return self.get(answer.header("location"))

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            given = {} if not self.cookies else {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
            connection.request(
                method, path, body, {**given, **{name.replace("_", "-"): value for name, value in (headers or {}).items()}}
            )
            answer = connection.getresponse()
            found = Answer(answer.status, answer.getheaders(), answer.read().decode())
        finally:
            connection.close()
        for name, value in found.headers:
            if name.lower() == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return found

    def parts(self, path: str, after_head: Callable[[], None] = lambda: None) -> tuple[int, str, str]:
        """The status of an answer, the first part of its body, and the rest."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request("GET", path, headers={"Cookie": cookie})
            answer = connection.getresponse()
            head = answer.read1()
            after_head()
            return answer.status, head.decode(), answer.read().decode()
        finally:
            connection.close()

    def log_in(self) -> Self:
        answer = self.get(f"/login?token={TOKEN}")
        assert answer.status == 303, answer.text
        return self


class WebPage:
    """`redelivery web` in its own process, on the loopback, until the block ends."""

    def __init__(self, app: str, folder: Path, *words: str, env: Mapping[str, str] | None = None) -> None:
        token = folder / "token"
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "redelivery", "-A", app, "web", "--port", "0", "--token-file", str(token), *words]
        self._log = (folder / "web.log").open("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("redelivery web: http://"), (said, self.log)
        self.address = said.split()[-1].rstrip("/")
        self.port = urlsplit(self.address).port or 0
        until(self._answers, 30, "the page to answer")

    def _answers(self) -> bool:
        try:
            self.visitor().get("/static/page.css")
        except ConnectionError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def visitor(self) -> Visitor:
        """A client that is not logged in."""
        return Visitor(self.port)

    def operator(self) -> Visitor:
        """A client that is logged in."""
        return self.visitor().log_in()
