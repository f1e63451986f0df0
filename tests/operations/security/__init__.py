"""Tests of rights, and of what is hidden."""
