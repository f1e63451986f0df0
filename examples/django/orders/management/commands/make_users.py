"""`manage.py make_users`: an operator, somebody of the support, and somebody who is neither."""

from __future__ import annotations

from django.contrib.auth.models import Group, User
from django.core.management.base import BaseCommand

__all__ = ["Command"]


class Command(BaseCommand):
    """The command."""

    help = "Make three users, each with his name as password."

    def handle(self, *_: object, **__: object) -> None:
        """Make them."""
        for name, group in (("olga", "operators"), ("carl", "support"), ("bea", "")):
            user = User.objects.create_user(name, password=name)
            if group:
                user.groups.add(Group.objects.get_or_create(name=group)[0])
