"""Django and the operator's page in one ASGI application: `uvicorn shop.asgi:application`."""

from __future__ import annotations

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

from redelivery.web import asgi_app
from shop import celery_app

__all__ = ["application"]

django = get_asgi_application()  # from here on Django is ready

from shop.operators import operator  # noqa: E402 - it uses Django's users

page = asgi_app(celery_app, user=operator, allow=["redrive", "edit"])
application = Starlette(routes=[Mount("/redelivery", page), Mount("/", django)])
