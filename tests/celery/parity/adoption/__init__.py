"""Tests of applications that begin to use ours, and of plain workers beside it."""
