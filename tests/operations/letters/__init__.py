"""Tests of what operators do with dead letters."""
