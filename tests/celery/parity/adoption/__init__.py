"""Tests of applications that begin to use redelivery, and of plain workers beside it."""
