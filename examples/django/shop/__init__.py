"""The project. Its Celery app is imported with it, so that `@shared_task` finds it."""

from __future__ import annotations

from shop.celery import app as celery_app

__all__ = ["celery_app"]
