"""`manage.py make_users`: an operator, a user of the support, and a user without a group."""

from __future__ import annotations

from django.contrib.auth.models import Group, User
from django.core.management.base import BaseCommand

__all__ = ["Command"]


class Command(BaseCommand):
    """The command."""

    help = "Make three users, each with the name as password."

    def handle(self, *_: object, **__: object) -> None:
        """Make the users."""
        for name, group in (("olga", "operators"), ("carl", "support"), ("bea", "")):
            user = User.objects.create_user(name, password=name)
            if group:
                user.groups.add(Group.objects.get_or_create(name=group)[0])
