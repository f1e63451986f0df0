"""Tests of what watches and commands a worker."""
