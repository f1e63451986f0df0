"""Tests of the metrics, and of what watches them."""
