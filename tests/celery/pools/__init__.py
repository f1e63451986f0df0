"""Tests of the pools."""
