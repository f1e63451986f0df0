"""Tests of what is one broker's own."""
