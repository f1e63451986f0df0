"""Tests of single faults."""
