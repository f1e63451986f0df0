"""The page: its routes, and how a request is answered.

A request passes the guard, then the login. One of a few threads renders the screen, within a bounded time. If the broker refuses or
does not answer, the screen says so.
"""

from __future__ import annotations

import functools
import re
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from redelivery.display import harmless
from redelivery.errors import BrokerError, RedeliveryError
from redelivery.middleware.logs import log

from ..brokers.broker_words import broker_message
from . import views
from .access import ACTIONS, TokenLogin, User
from .early import Early
from .guard import FAILURE, FormCookie, Guard, Refused, form_of, is_same_origin
from .runner import PageRunner
from .screen import PageServices, Redirect, Screen, Visit
from .shared.source import Source
from .shared.streams import Streams
from .shared.threads import Threads, Turn
from .words import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.requests import Request

    from redelivery.middleware.runtime import Runtime

    from .access import Allowed, Login

#: The addresses of the login's form, and of static files.
LOGIN, STATIC = "/login", "/static"
#: The two parts of an error text: what went wrong; and what to do, or the broker's own text.
_HEADING = re.compile(r"(the (?:broker|page)[^:(]{1,90}?)(?:: | (?=\())(.+)", re.DOTALL | re.IGNORECASE)


class Page:
    """One page for one app. `hosts` is as in `Guard`; `allow` limits the rights of all users.

    With `carries_out`, the process also runs operations (`PageRunner`), if the page allows any action.
    """

    def __init__(
        self,
        runtime: Runtime,
        login: Login,
        *,
        allow: Allowed = (),
        hosts: Collection[str] | None = None,
        books: str | None = None,
        is_live: bool = True,
        carries_out: bool = False,
    ) -> None:
        self.allows = User("page", allow)
        self._source, self._login, self._is_live = Source(runtime), login, is_live
        self._services = PageServices(self._source, self.allows, books)
        self._fast, self._slow, self._reading = Threads(), Threads(), Threads()
        self._streams = Streams(self._services.sampler, self._fast)
        self._runner = PageRunner(self._source) if carries_out and self.allows.actions else None
        self._templates = environment()
        self._templates.get_template("head.html")  # compiled before the first request
        static = StaticFiles(directory=str(files("redelivery.workers.web.static")))
        routes = [
            Mount(STATIC, _Cached(static)),
            *(Route(path, functools.partial(self._answer, path, view), methods=["GET"]) for path, view in views.screens().items()),
            *(Route(path, functools.partial(self._act, view), methods=["POST"]) for path, view in views.acts().items()),
            *([Route(LOGIN, self._log_in, methods=["GET", "POST"])] if isinstance(login, TokenLogin) else []),
            Route("/live", self._live, methods=["GET"]),
        ]
        self.asgi = Guard(Starlette(routes=routes, exception_handlers={404: self._not_found, 405: self._not_found}), hosts)

    async def _answer(self, path: str, view: Callable[[Visit], Screen | Redirect], request: Request) -> Response:
        user = await self._login.user(request)
        if user is None:
            return self._log_in_first(request)
        early = Early(lambda: self._head(path, visit))
        visit = Visit(self._services, user, _root(request), request.url.path, _pairs(request), searches=early.searches)
        cookie = FormCookie(request)
        answer = await early.answer(self._render(request, view, visit, cookie, self._threads(path, visit)))
        if cookie.is_new:
            _set_cookie(request, answer, cookie.name, cookie.value)
        return answer

    async def _act(self, view: Callable[[Visit], Screen | Redirect], request: Request) -> Response:
        user = await self._login.user(request)
        if user is None:
            return self._log_in_first(request)
        visit = Visit(self._services, user, _root(request), request.url.path, _pairs(request))
        try:
            form = await _own_form(request, user)
        except Refused as exc:
            log.warning("web.form_refused", path=request.url.path, user=user.name, why=exc.why)
            return self._failed(request, visit, exc.status, exc.why)
        visit = Visit(self._services, user, visit.root, visit.path, visit.query, form or {"": [""]}, Turn(visit.path, user.name))
        return await self._render(request, view, visit, FormCookie(request), self._fast)

    async def _render(
        self, request: Request, view: Callable[[Visit], Screen | Redirect], visit: Visit, cookie: FormCookie, threads: Threads
    ) -> Response:
        try:
            return await threads.run(visit.turn, self._view, view, visit, cookie, asks_broker=threads is not self._reading)
        except Refused as exc:
            return self._failed(request, visit, exc.status, exc.why)
        except BrokerError as exc:
            return self._failed(request, visit, 503, _with_result(visit, str(exc)))
        except RedeliveryError as exc:
            return self._failed(request, visit, 400, str(exc))
        except Exception as exc:  # noqa: BLE001 - the next request may be answered
            message = broker_message(exc)
            if message is None:
                log.exception("web.failed", path=request.url.path)
                return self._failed(request, visit, 500, _with_result(visit, FAILURE))
            return self._failed(request, visit, 503, _with_result(visit, message))

    def _threads(self, path: str, visit: Visit) -> Threads:
        """The threads that render this screen. Searches have their own; a screen that only reads files waits for no broker."""
        if not views.asks_broker(path, visit.query):
            return self._reading
        return self._slow if path in views.SLOW else self._fast

    def _head(self, path: str, visit: Visit) -> bytes:
        """A screen that has only its head."""
        return bytes(self._html(visit, Screen("head.html", {"here": path, "title": views.TITLES[path]}), "", 0).body)

    def _view(self, view: Callable[[Visit], Screen | Redirect], visit: Visit, cookie: FormCookie, *, asks_broker: bool) -> Response:
        with visit.screen() if asks_broker else nullcontext():
            shown = view(visit)
        if self._runner is not None and asks_broker:
            self._runner.start()
        if isinstance(shown, Redirect):
            return RedirectResponse(visit.href(shown.path, **shown.query), status_code=303)
        return self._html(visit, shown, cookie.token(visit.user.name), self._source.now_ms() if asks_broker else 0)

    def _html(self, visit: Visit, shown: Screen, token: str, now_ms: int) -> Response:
        values = {
            "visit": visit,
            "href": visit.href,
            "token": token,
            "now_ms": now_ms,
            "app_name": self._source.runtime.app.main or "app",
            "is_live": self._is_live,
            "screens": views.SCREENS,
            "is_read_only": not any(visit.may(each) for each in ACTIONS),
            "redact": False,
        }
        return HTMLResponse(self._templates.get_template(shown.template).render({**values, **shown.values}), shown.status)

    def _failed(self, request: Request, visit: Visit, status: int, why: str) -> Response:
        if not request.headers.get("accept", "text/html").startswith(("text/html", "*/*", "application/xhtml")):
            return PlainTextResponse(f"{why}\n", status)
        heading, why = _in_two(harmless(why)) if status == 503 else ("", harmless(why))  # noqa: PLR2004 - HTTP's number
        values: dict[str, Any] = {"heading": heading, "why": why, "status": status}
        if heading:
            values["is_live"] = False  # the stream of live figures would only repeat this error
        return self._html(visit, Screen("failed.html", values, status), "", 0)

    def _log_in_first(self, request: Request, *, is_wrong: bool = False) -> Response:
        has_form = isinstance(self._login, TokenLogin)
        text = self._templates.get_template("login.html").render(root=quote(_root(request)), has_form=has_form, is_wrong=is_wrong)
        return HTMLResponse(text, 401)

    async def _log_in(self, request: Request) -> Response:
        """Take the token from the printed address or from the form, and redirect to an address without it."""
        assert isinstance(self._login, TokenLogin)  # noqa: S101 - the route exists only for it
        if request.method == "POST":
            try:
                given = (await _form(request)).get("token", [""])[0].strip()
            except Refused as exc:
                return PlainTextResponse(f"{exc.why}\n", exc.status)
        else:
            given = request.query_params.get("token", "")
        if not self._login.accepts(given):
            return self._log_in_first(request, is_wrong=bool(given))
        answer = RedirectResponse(f"{quote(_root(request))}/", 303)
        _set_cookie(request, answer, self._login.cookie, self._login.session)
        return answer

    async def _live(self, request: Request) -> Response:
        if await self._login.user(request) is None:
            return PlainTextResponse("log in first\n", 401)
        if not self._is_live or "wsgi_environ" in request.scope:
            return Response(status_code=204)  # the browser does not connect again
        return self._streams.stream()

    async def _not_found(self, request: Request, exc: Exception) -> Response:
        user = await self._login.user(request)
        if user is None:
            return self._log_in_first(request)
        visit = Visit(self._services, user, _root(request), request.url.path, {})
        return self._failed(request, visit, getattr(exc, "status_code", 404), "The page has no such screen.")


def _with_result(visit: Visit, why: str) -> str:
    """Return the error's text; for a form, also whether it may have changed something."""
    return why if not visit.form or "changed nothing" in why else f"{why.rstrip('.')}. {visit.turn.result}"


def _in_two(why: str) -> tuple[str, str]:
    """Split an error of the broker into a heading and a text."""
    found = _HEADING.match(why)
    return ("The broker does not answer", why) if found is None else (found[1][0].upper() + found[1][1:], found[2])


async def _form(request: Request) -> dict[str, list[str]]:
    """Read a form. Raises `Refused` if another site sent it."""
    if not is_same_origin(request.headers):
        raise Refused(403, "This form was sent by another site. Nothing was changed.")
    return await form_of(request)


async def _own_form(request: Request, user: User) -> dict[str, list[str]]:
    """Read a form. Raises `Refused` if this page did not make it for this user."""
    form = await _form(request)
    if not FormCookie(request).signed(user.name, form.pop("token", [""])[0]):
        raise Refused(403, "This form does not come from this page, or it is too old: open the page again. Nothing was changed.")
    return form


class _Cached:
    """Static files, which a browser keeps and revalidates."""

    def __init__(self, app: StaticFiles) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def kept(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"cache-control", b"no-cache")]
            await send(message)

        await self._app(scope, receive, kept)


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root


def _pairs(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    return found


def _set_cookie(request: Request, answer: Response, name: str, value: str) -> None:
    path = quote(_root(request)) or "/"
    is_secure = request.url.scheme == "https"
    answer.set_cookie(name, value, path=path, httponly=True, samesite="strict", secure=is_secure)
