"""Tests of what a plain worker does, and ours does alike."""
