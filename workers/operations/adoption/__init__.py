"""Adoption and leaving: what changes for an app that adds `redelivery`, and how it returns to plain Celery."""
