"""Tests of what a user installs, types and imports."""
