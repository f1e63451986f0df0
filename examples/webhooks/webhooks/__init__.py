"""Signed webhooks, delivered over HTTP to a receiver that misbehaves, by a Celery worker that is killed; and the books of it."""
