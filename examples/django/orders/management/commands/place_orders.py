"""`manage.py place_orders`: orders in one transaction. Their tasks are published after the commit."""

from __future__ import annotations

from django.core.management.base import BaseCommand
from django.db import transaction

from orders.models import Order
from orders.tasks import charge

__all__ = ["Command"]

CARDS = ("good", "tired", "stolen", "foreign", "good", "tired", "foreign", "good")


class Command(BaseCommand):
    """The command."""

    help = "Place eight orders."

    def handle(self, *_: object, **__: object) -> None:
        """Place the orders. `delay_on_commit` comes from Celery's task class for Django."""
        with transaction.atomic():
            for card in CARDS:
                charge.delay_on_commit(Order.objects.create(card=card).pk)
