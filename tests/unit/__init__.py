"""Tests without a broker."""
