"""Tests of Celery features that tasks rely on."""
