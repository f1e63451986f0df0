"""Trials: one story on a plain Celery worker and on ours, and the application that plays it."""
