"""Tests of crashes, outages and hostile messages."""
