"""The rights on the operator's page: Django's users, by their groups."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest

from redelivery.web import User

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["operator"]

#: For each group its actions, and for each action its queues. A user without a group sees nothing.
RIGHTS = {"operators": {"redrive": ["DLQ.*"], "edit": ["DLQ.*"]}, "support": {}}


def operator(request: Request) -> User | None:
    """The user of Django's session, or None. It runs in a thread, so it may use the database."""
    close_old_connections()
    asked = HttpRequest()
    asked.session = import_module(settings.SESSION_ENGINE).SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    found = get_user(asked)
    if not found.is_active:
        return None
    if found.is_superuser:
        return User(found.get_username(), "all")
    groups = RIGHTS.keys() & set(found.groups.values_list("name", flat=True))
    if not groups:
        return None
    rights: dict[str, list[str]] = {}
    for group in groups:
        for action, queues in RIGHTS[group].items():
            rights.setdefault(action, []).extend(queues)
    return User(found.get_username(), rights)
