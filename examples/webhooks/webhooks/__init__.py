"""Signed webhooks that Celery tasks send over HTTP, to a receiver with faults, while workers are killed; and the books."""
