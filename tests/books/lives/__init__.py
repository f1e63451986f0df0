"""Tests of how lives are judged."""
