"""Tests of the metrics, and of the tools that use them."""
