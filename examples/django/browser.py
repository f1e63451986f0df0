"""A visitor of the shop's web application, who logs in at Django and uses the operator's page by its links and forms.

It connects to the socket that uvicorn listens on.
"""

from __future__ import annotations

import html
import re

import httpx

__all__ = ["Visitor"]


class Visitor:
    """One user, with separate cookies."""

    def __init__(self, socket: str, name: str) -> None:
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket), base_url="http://shop.example", follow_redirects=True
        )
        form = self._fields(self._client.get("/login/").text)
        self._client.post("/login/", data={**form, "username": name, "password": name})

    def open(self, path: str) -> tuple[int, str]:
        """Open a screen of the page; returns its status and its text."""
        answer = self._client.get(f"/redelivery{path}")
        return answer.status_code, _read(answer.text)

    def begin(self, preview: str, why: str) -> str:
        """Make a dry run, and begin its operation; returns the text of the dry run."""
        shown = self._client.get(f"/redelivery{preview}").text
        form = {**self._fields(shown), "why": why}
        done = self._client.post("/redelivery/operations/begin", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        done.raise_for_status()
        return _read(shown)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @staticmethod
    def _fields(page: str) -> dict[str, str]:
        """The hidden fields of the first form with the method POST."""
        form = re.search(r'<form[^>]*method="post".*?</form>', page, re.DOTALL)
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', "" if form is None else form[0])
        return {name: html.unescape(value) for name, value in hidden}


def _read(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
