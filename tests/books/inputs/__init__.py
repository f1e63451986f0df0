"""Tests of what the books read."""
