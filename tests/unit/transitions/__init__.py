"""Tests of transitions."""
