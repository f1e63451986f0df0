"""Somebody at the shop's web application: logs in at Django, and works on the operator's page by its links and forms.

It connects to the socket that uvicorn listens on, and leaves nothing behind.
"""

from __future__ import annotations

import html
import re

import httpx

__all__ = ["Visitor"]


class Visitor:
    """One user, with cookies of his own."""

    def __init__(self, socket: str, name: str) -> None:
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket), base_url="http://shop.example", follow_redirects=True
        )
        form = self._fields(self._client.get("/login/").text)
        self._client.post("/login/", data={**form, "username": name, "password": name})

    def open(self, path: str) -> tuple[int, str]:
        """A screen of the page: its status, and what a person reads there."""
        answer = self._client.get(f"/redelivery{path}")
        return answer.status_code, _read(answer.text)

    def begin(self, preview: str, why: str) -> str:
        """Have a dry run, and begin what it shows; what the dry run said."""
        shown = self._client.get(f"/redelivery{preview}").text
        form = {**self._fields(shown), "why": why}
        done = self._client.post("/redelivery/operations/begin", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        done.raise_for_status()
        return _read(shown)

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    @staticmethod
    def _fields(page: str) -> dict[str, str]:
        """The hidden fields of the first form that is sent by POST."""
        form = re.search(r'<form[^>]*method="post".*?</form>', page, re.DOTALL)
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', "" if form is None else form[0])
        return {name: html.unescape(value) for name, value in hidden}


def _read(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
