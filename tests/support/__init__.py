"""Helpers of the tests: servers, workers, applications."""
