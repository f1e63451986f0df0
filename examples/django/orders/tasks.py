"""The orders' tasks. They have no code for retries, except the `DeadLetter` for a failure that no retry can repair."""

from __future__ import annotations

import os
from pathlib import Path

from celery import shared_task
from django.db.models import F

from orders.models import Order
from redelivery import DeadLetter

__all__ = ["charge", "thank"]


class BankError(Exception):
    """The bank did not answer. A later attempt may succeed."""


def ask_bank(order: Order) -> None:
    """Simulate a bank: foreign cards fail until a file exists, tired ones at the first attempt."""
    if order.card == "stolen":
        message = "card stolen"
        raise DeadLetter(message)
    if order.card == "foreign" and not Path(os.environ["SHOP_BANK_OPEN"]).exists():
        message = "the foreign bank is shut"
        raise BankError(message)
    if order.card == "tired" and order.attempts < 2:  # noqa: PLR2004 - the second attempt succeeds
        message = "the bank did not answer"
        raise BankError(message)


@shared_task
def charge(order_id: int) -> None:
    """Charge an order. It is idempotent: if the task runs twice, the order is charged once."""
    order = Order.objects.get(pk=order_id)
    if order.status == "paid":
        return
    Order.objects.filter(pk=order_id).update(attempts=F("attempts") + 1)
    order.refresh_from_db()
    ask_bank(order)
    Order.objects.filter(pk=order_id).update(status="paid")
    thank.delay(order_id)


@shared_task
def thank(order_id: int) -> None:
    """Say thank you. It needs no second attempt, so the settings disable redelivery for it."""
    if order_id % 2:
        message = "the mail server is away"
        raise ConnectionError(message)
