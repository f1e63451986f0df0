"""Tests of what operators do."""
