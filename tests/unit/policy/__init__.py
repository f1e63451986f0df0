"""Tests of policies and decisions."""
