"""Tests of other libraries that are used with Celery."""
