"""Tests of Celery's own features with redelivery installed."""
