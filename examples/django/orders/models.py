"""The orders' table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

__all__ = ["Order"]


class Order(models.Model):
    """One order. `card` decides the bank's answer."""

    card = models.CharField(max_length=20)
    status = models.CharField(max_length=20, default="placed")
    attempts = models.IntegerField(default=0)

    class Meta:
        """The order of listings."""

        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"order {self.pk} ({self.card}): {self.status}"
