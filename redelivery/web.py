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

    from redelivery.middleware.runtime import Runtime
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

    `user` is the login: a function that gets the request and returns its `User`, or None. Without a login, `token` is one token for
    all users. `allow` bounds what any user may do: actions (`redrive`, `edit`, …, or `all`), or each action with its
    queues; without it the page is read-only. `books` is the path to which `reconcile --output` writes.

    If `allow` allows any action, this process also carries out operations, as workers do, after its first request. With
    `carry_out=False` it leaves operations to the workers. Raises `ConfigurationError`.
    """
    runtime, login = _runtime(app), _login(user, token)
    return Page(runtime, login, allow=allow, books=books, is_live=True, carries_out=carry_out).asgi


def wsgi_app(
    app: Celery,
    *,
    user: Callable[[Request], User | Awaitable[User | None] | None] | None = None,
    allow: Allowed = (),
    token: str | None = None,
    books: str | None = None,
    carry_out: bool = True,
) -> Callable[..., Any]:
    """As `asgi_app`, for a WSGI application. No live figures, because each open page would occupy a worker of the server.

    The request that `user` gets has the WSGI environment in `request.scope["wsgi_environ"]`.
    """
    from a2wsgi import ASGIMiddleware  # noqa: PLC0415 - only WSGI applications need it

    runtime, login = _runtime(app), _login(user, token)
    page = Page(runtime, login, allow=allow, books=books, is_live=False, carries_out=carry_out)
    return ASGIMiddleware(page.asgi)  # type: ignore[arg-type] # its types of ASGI are its own


def _runtime(app: Celery) -> Runtime:
    runtime: Runtime | None = getattr(app, "redelivery", None)
    if runtime is None:
        msg = f"app {app.main or 'default'!r} has no redelivery: call Redelivery(app) before its page is made"
        raise ConfigurationError(msg)
    return runtime


def _login(user: Callable[[Request], User | Awaitable[User | None] | None] | None, token: str | None) -> Login:
    if user is not None and token is None:
        return HostLogin(user)
    if user is not None or token is None:
        msg = "the page needs one login: user=, a function that names the user of a request, or token=, for all who have it"
        raise ConfigurationError(msg)
    if len(token) < 16:  # noqa: PLR2004 - too long to guess
        msg = "token= must have 16 characters or more: a shorter one is easy to guess"
        raise ConfigurationError(msg)
    return TokenLogin(token, User("operator", "all"))
