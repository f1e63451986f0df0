"""Tests with many kills in a row."""
