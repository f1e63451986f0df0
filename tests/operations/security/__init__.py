"""Tests of rights, and of hidden data."""
