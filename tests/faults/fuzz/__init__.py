"""Tests of messages that anybody may have written."""
