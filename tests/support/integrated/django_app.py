"""The tests' app in a Django project: results in its database (django-celery-results), and schedules (django-celery-beat)."""

from __future__ import annotations

import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.support.integrated.django_settings"
django.setup()

from tests.support.shop import app  # noqa: E402 - Django is there first, as in any project

__all__ = ["app"]

app.conf.result_backend = "django-db"
app.conf.result_extended = True
app.conf.task_track_started = True
app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
app.conf.beat_max_loop_interval = 1
