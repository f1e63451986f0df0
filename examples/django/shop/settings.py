"""Django's settings, with those of Celery and redelivery."""

from __future__ import annotations

import os
from pathlib import Path

SECRET_KEY = "an example keeps no secrets"  # noqa: S105 - the value says so
USE_TZ = True
ALLOWED_HOSTS = ["shop.example"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "orders"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [Path(__file__).parent / "templates"]}]
LOGIN_REDIRECT_URL = "/redelivery/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
        "OPTIONS": {"timeout": 20},
    },
}

CELERY_BROKER_URL = os.environ.get("SHOP_BROKER", "redis://localhost:6379/0")
CELERY_TASK_IGNORE_RESULT = True
# Short times, so that the example ends soon.
CELERY_REDELIVERY = {
    "queues": {"#": {"max_delivery_attempts": 3, "redelivery_delay": 0.2}},
    "tasks": {"orders.tasks.thank": {"enabled": False}},
}
