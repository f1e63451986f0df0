"""Tests of Redis and Valkey."""
