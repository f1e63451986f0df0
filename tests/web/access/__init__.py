"""Tests of rights on the page, and of hostile texts on it."""
