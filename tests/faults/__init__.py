"""Tests of what goes wrong."""
