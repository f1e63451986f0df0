"""Tests of the duties beside the tasks."""
