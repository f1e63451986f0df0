"""Tests of the operator's page, over HTTP and in a browser."""
