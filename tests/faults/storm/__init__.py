"""Tests of many kills in a row."""
