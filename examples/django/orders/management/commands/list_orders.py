"""`manage.py list_orders`: all orders as one JSON list."""

from __future__ import annotations

import json

from django.core.management.base import BaseCommand

from orders.models import Order

__all__ = ["Command"]


class Command(BaseCommand):
    """The command."""

    help = "Print the orders as JSON."

    def handle(self, *_: object, **__: object) -> None:
        """Print the orders."""
        self.stdout.write(json.dumps([[order.card, order.status, order.attempts] for order in Order.objects.all()]))
