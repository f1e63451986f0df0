"""The orders' table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

__all__ = ["Order"]


class Order(models.Model):
    """One order. `card` decides how the bank answers."""

    card = models.CharField(max_length=20)
    status = models.CharField(max_length=20, default="placed")
    attempts = models.IntegerField(default=0)

    class Meta:
        """How orders are listed."""

        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"order {self.pk} ({self.card}): {self.status}"
