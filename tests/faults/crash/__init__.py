"""Tests of single faults, looked at one by one."""
