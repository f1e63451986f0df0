"""The tables."""

from __future__ import annotations

from django.db import connection, models

__all__ = ["Line", "Order", "create_tables"]


class Order(models.Model):
    """An order."""

    item = models.CharField(max_length=40)
    count = models.IntegerField(default=1)
    status = models.CharField(max_length=20, default="placed")

    class Meta:
        """Where it belongs."""

        app_label = "store"

    def __str__(self) -> str:
        return f"{self.count} x {self.item}: {self.status}"


class Line(models.Model):
    """A line of the audit."""

    task = models.CharField(max_length=80)
    task_id = models.CharField(max_length=40)
    what = models.CharField(max_length=80)

    class Meta:
        """Where it belongs."""

        app_label = "store"

    def __str__(self) -> str:
        return f"{self.task}: {self.what}"


def create_tables() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Order)
        editor.create_model(Line)
