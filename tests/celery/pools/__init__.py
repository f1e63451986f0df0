"""Tests of Celery's pools."""
