"""Tests of messages that any client may have written."""
