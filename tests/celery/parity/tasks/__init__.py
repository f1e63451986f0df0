"""Tests of what tasks rely on."""
