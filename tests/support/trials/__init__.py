"""Trials: the same story on a plain Celery worker and on a worker with redelivery, and the application that plays it."""
