"""Tests of a message's life on real workers."""
