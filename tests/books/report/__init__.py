"""Tests of what the books show."""
