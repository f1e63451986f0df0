"""Tests of the duties that a worker has besides its tasks."""
