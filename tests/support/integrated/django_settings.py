"""Django's settings of `tests.support.integrated.django_app`."""

from __future__ import annotations

import os
from pathlib import Path

SECRET_KEY = "tests keep no secrets"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_results", "django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(os.environ["SHOP_RUNS"]).with_name("database"),
        "OPTIONS": {"timeout": 20},
    },
}
