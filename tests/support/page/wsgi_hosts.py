"""A Django and a Flask application that mount the operator's page behind their own logins, on the loopback.

`python -m tests.support.page.wsgi_hosts django|flask` prints its port. A request to `/enter?user=NAME` logs in.
"""

from __future__ import annotations

import os
import sys
from http.cookies import SimpleCookie
from importlib import import_module
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from werkzeug.middleware.dispatcher import DispatcherMiddleware

from redelivery.web import User, wsgi_app

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

#: The path of the page, and the rights of its users.
PATH = "/ops"
RIGHTS: Mapping[str, Mapping[str, list[str]]] = {"olga": {"redrive": ["DLQ.orders"]}, "carl": {}}


def rights_of(name: str) -> User | None:
    """A user of the page; None for a name without rights."""
    return User(name, RIGHTS[name]) if name in RIGHTS else None


def mounted(host: Any, user: Callable[[Request], User | None]) -> Any:
    from tests.support.page.web_shop import app  # noqa: PLC0415 - it needs the broker's address

    return DispatcherMiddleware(host, {PATH: wsgi_app(app, user=user, allow=["redrive"], carry_out=False)})


def django() -> Any:
    """A Django project with sessions and users in a database."""
    import django  # noqa: PLC0415 - only one of the two is asked for
    from django.conf import settings  # noqa: PLC0415 - as above

    settings.configure(
        SECRET_KEY="tests keep no secrets",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(os.environ["WEB_SHOP_FOLDER"], "django.sqlite")}
        },
    )
    django.setup()
    from django.contrib.auth import get_user, get_user_model, login  # noqa: PLC0415 - Django is ready from here on
    from django.core.management import call_command  # noqa: PLC0415 - as above
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415 - as above
    from django.http import HttpRequest, HttpResponse  # noqa: PLC0415 - as above
    from django.urls import path  # noqa: PLC0415 - as above

    call_command("migrate", verbosity=0)
    users = get_user_model().objects
    for name in (*RIGHTS, "bea"):
        users.create_user(name)

    def enter(request: HttpRequest) -> HttpResponse:
        login(request, users.get(username=request.GET["user"]))
        return HttpResponse("welcome")

    def operator(request: Request) -> User | None:
        cookies = SimpleCookie(request.scope["wsgi_environ"].get("HTTP_COOKIE", ""))
        session = cookies.get(settings.SESSION_COOKIE_NAME)
        asked = HttpRequest()
        asked.session = import_module(settings.SESSION_ENGINE).SessionStore(None if session is None else session.value)
        found = get_user(asked)
        return rights_of(found.get_username())

    globals()["urlpatterns"] = [path("enter", enter)]
    return mounted(get_wsgi_application(), operator)


def flask() -> Any:
    """A Flask application with its signed session."""
    from flask import Flask, request, session  # noqa: PLC0415 - only one of the two is asked for

    host = Flask("host")
    host.secret_key = "tests keep no secrets"

    @host.get("/enter")
    def enter() -> str:
        session["user"] = request.args["user"]
        return "welcome"

    def operator(asked: Request) -> User | None:
        with host.request_context(asked.scope["wsgi_environ"]):
            return rights_of(session.get("user", ""))

    return mounted(host, operator)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def main(name: str) -> None:
    """Serve until the process is ended."""
    host = {"django": django, "flask": flask}[name]()
    with make_server("127.0.0.1", 0, host, _Server, _Quiet) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
