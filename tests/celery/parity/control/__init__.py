"""Tests of tools that watch or command a worker."""
