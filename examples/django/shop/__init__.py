"""The project. It imports its Celery app, so that `@shared_task` finds the app."""

from __future__ import annotations

from shop.celery import app as celery_app

__all__ = ["celery_app"]
