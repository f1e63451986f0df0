"""Tests of what each screen shows."""
