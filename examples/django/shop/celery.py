"""The project's Celery app, as Celery's documentation writes it, and the two lines of redelivery."""

from __future__ import annotations

import os

from celery import Celery

from redelivery import Redelivery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
Redelivery(app)
