"""Tests of libraries beside Celery."""
