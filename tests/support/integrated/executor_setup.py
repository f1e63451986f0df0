"""The module that a user of Airflow adds. The configuration of Celery imports it."""

from __future__ import annotations

from redelivery import Redelivery
from tests.support.integrated.executor import app

Redelivery(app)
