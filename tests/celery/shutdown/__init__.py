"""Tests of workers that stop."""
