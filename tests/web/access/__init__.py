"""Tests of who may see and do what on the page, and of what hostile words do there."""
