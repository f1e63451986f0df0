"""What a user of Airflow adds: a module that the configuration of Celery imports, and one line."""

from __future__ import annotations

from redelivery import Redelivery
from tests.support.integrated.executor import app

Redelivery(app)
