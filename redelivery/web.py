"""The operator's page for an application that mounts it: `asgi_app(app, user=…)`, and `wsgi_app` for Flask and Django's WSGI.

Needs the extra `web`: `pip install 'redelivery[web]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redelivery.errors import ConfigurationError
from redelivery.workers.web.access import HostLogin, TokenLogin, User
from redelivery.workers.web.page import Page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from celery import Celery
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from redelivery.workers.web.access import Allowed, Login

__all__ = ["User", "asgi_app", "wsgi_app"]


def asgi_app(
    app: Celery,
    *,
    user: Callable[[Request], User | Awaitable[User | None] | None] | None = None,
    allow: Allowed = (),
    token: str | None = None,
    books: str | None = None,
    carry_out: bool = True,
) -> ASGIApp:
    """The page of this Celery app, to be mounted under any path.

    `user` is the login: it is given the request, and answers who asks (`User`) or None. `token` is one for everybody who has it,
    where there is no login. `allow` bounds what any user may do: actions (`redrive`, `edit`, …, or `all`), or each with its
    queues; without it the page reads only. `books` is where `reconcile --output` writes.

    Where `allow` allows anything, this process takes part in carrying operations out, as workers do, from its first request on;
    with `carry_out=False` it leaves that to them. Raises `ConfigurationError`.
    """
    return _page(app, user=user, allow=allow, token=token, books=books, carry_out=carry_out, is_live=True).asgi


def wsgi_app(
    app: Celery,
    *,
    user: Callable[[Request], User | Awaitable[User | None] | None] | None = None,
    allow: Allowed = (),
    token: str | None = None,
    books: str | None = None,
    carry_out: bool = True,
) -> Callable[..., Any]:
    """The same for a WSGI application; without live figures, each of which would take a worker of its server.

    The request that `user` is given has the WSGI environment in `request.scope["wsgi_environ"]`.
    """
    from a2wsgi import ASGIMiddleware  # noqa: PLC0415 - only where a WSGI application asks for it

    page = _page(app, user=user, allow=allow, token=token, books=books, carry_out=carry_out, is_live=False)
    return ASGIMiddleware(page.asgi)  # type: ignore[arg-type] # its types of ASGI are its own


def _page(
    app: Celery,
    *,
    user: Callable[[Request], User | Awaitable[User | None] | None] | None,
    allow: Allowed,
    token: str | None,
    books: str | None,
    carry_out: bool,
    is_live: bool,
) -> Page:
    runtime = getattr(app, "redelivery", None)
    if runtime is None:
        msg = f"app {app.main or 'default'!r} has no redelivery: call Redelivery(app) before its page is made"
        raise ConfigurationError(msg)
    if (user is None) == (token is None):
        msg = "who may see this page? give user=, which names the user of a request, or token=, for everybody who has it"
        raise ConfigurationError(msg)
    login: Login
    if user is not None:
        login = HostLogin(user)
    else:
        assert token is not None  # noqa: S101 - one of the two is given
        if len(token) < 16:  # noqa: PLR2004 - so that nobody guesses it
            msg = "token= has 16 characters or more, so that nobody guesses it"
            raise ConfigurationError(msg)
        login = TokenLogin(token, User("operator", "all"))
    return Page(runtime, login, allow=allow, books=books, is_live=is_live, carries_out=carry_out)
