"""The orders' tasks. No line of them speaks of retries, but for what a person alone can know."""

from __future__ import annotations

import os
from pathlib import Path

from celery import shared_task
from django.db.models import F

from orders.models import Order
from redelivery import DeadLetter

__all__ = ["charge", "thank"]


class BankError(Exception):
    """The bank could not be asked; a later attempt may do better."""


def ask_bank(order: Order) -> None:
    """Stand for a bank: it is shut until a file says otherwise, and often tired."""
    if order.card == "stolen":
        message = "card stolen"
        raise DeadLetter(message)
    if order.card == "foreign" and not Path(os.environ["SHOP_BANK_OPEN"]).exists():
        message = "the foreign bank is shut"
        raise BankError(message)
    if order.card == "tired" and order.attempts < 2:  # noqa: PLR2004 - the second attempt finds it awake
        message = "the bank did not answer"
        raise BankError(message)


@shared_task
def charge(order_id: int) -> None:
    """Charge an order; done twice, it is charged once."""
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
    """Say thank you: not worth a second attempt, so it is not enabled in the settings."""
    if order_id % 2:
        message = "the mail server is away"
        raise ConnectionError(message)
