"""Tests of who may see and do what on the page, and of hostile texts on it."""
