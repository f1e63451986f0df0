"""Adoption and leaving: what changes for an app that begins with `redelivery`, and how it goes back to plain Celery."""
