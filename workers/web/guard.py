"""Checks every request (its host, its method, the sender of a form), and adds security headers to every answer.

A form is accepted if the browser says that it comes from this page (`Sec-Fetch-Site`, otherwise `Origin`), and if it has this
page's token, which is derived from a cookie that no other page can read. An unknown host name is refused, against DNS rebinding. An
IP address is always accepted.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import anyio
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The maximum bytes and fields of a form, and the maximum seconds until it has arrived.
MAX_BODY, MAX_FIELDS, BODY_SECONDS = 1024 * 1024, 200, 10.0
#: A host and its port in a request.
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{0,5})?", re.IGNORECASE | re.ASCII)
#: The maximum length of a query.
MAX_QUERY = 8192
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
#: The text for an unexpected error.
FAILURE = "This is an error in redelivery: its log says what happened."


class Refused(Exception):
    """A request that is not carried out: an HTTP status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Guard:
    """The ASGI application around the page: refuses other hosts and methods, and adds the security headers to every answer.

    `hosts` are the accepted host names; None if another application checks the host.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {each.lower().rstrip(".") for each in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request. The page has no web sockets."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in HEADERS]
                names = {name.lower() for name, _ in kept}
                more = [] if b"cache-control" in names else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*kept, *HEADERS.items(), *more]}
            await send(message)

        objection = self._objection(scope)
        if objection is None:
            await self._app(scope, receive, guarded)
        else:
            status, why = objection
            body = f"{why}\n".encode()
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
            await guarded({"type": "http.response.start", "status": status, "headers": headers})
            await guarded({"type": "http.response.body", "body": body})

    def _objection(self, scope: Scope) -> tuple[int, str] | None:
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            return 405, "The page answers GET and POST."
        if len(scope.get("query_string", b"")) > MAX_QUERY:
            return 414, "The address is too long."
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
        if self._hosts is not None and (len(hosts) != 1 or not _is_known(hosts[0], self._hosts)):
            return 421, "The page is not known by this name: start it with --allow-host NAME, or ask it by its address."
        return None


def _is_known(host: str, names: Collection[str]) -> bool:
    name = _name(host)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """Return a host without its port; empty if it is not a host."""
    found = HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower().rstrip(".")


def is_same_origin(headers: Headers) -> bool:
    """Whether the browser reports that a form comes from this page. Other clients report nothing, and are accepted."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == "same-origin"
    try:
        return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:  # no browser sends such an origin
        return False


class FormCookie:
    """The cookie that signs forms: random bytes, made when the first form is shown."""

    name = "redelivery_form"

    def __init__(self, request: Request) -> None:
        given = request.cookies.get(self.name, "")
        self.is_new = not (len(given) == 64 and given.isalnum())  # noqa: PLR2004 - two characters for each byte below
        self.value = secrets.token_hex(32) if self.is_new else given

    def token(self, user: str) -> str:
        """The token in this user's forms."""
        return form_token_of(self.value, user)

    def signed(self, user: str, given: str) -> bool:
        """Whether a form has the token of this user."""
        return not self.is_new and hmac.compare_digest(self.token(user).encode(), given.encode("utf-8", "replace"))


def form_token_of(cookie: str, user: str) -> str:
    """Return the token in the forms of a user who has this cookie."""
    return hmac.new(cookie.encode(), b"form\0" + user.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


async def form_of(request: Request) -> dict[str, list[str]]:
    """Read the fields of a form. Raises `Refused` if it is too long, arrives too late, or is not a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "The page takes only forms, as a browser sends them.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise Refused(413, f"A form may have at most {MAX_BODY} bytes.")
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise Refused(413, f"A form may have at most {MAX_BODY} bytes.")
    except TimeoutError as exc:
        raise Refused(408, "The form did not arrive in time.") from exc
    except ClientDisconnect as exc:
        raise Refused(400, "The client left before the whole form had arrived.") from exc
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as exc:
        raise Refused(400, "The form cannot be read.") from exc
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
