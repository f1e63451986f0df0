"""Tests of the properties of single brokers."""
