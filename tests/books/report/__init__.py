"""Tests of the output of the books."""
