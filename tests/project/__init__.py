"""Tests of the project itself: its documents, its packages, its contract."""
