"""Tests of Celery's own features, with ours around them."""
