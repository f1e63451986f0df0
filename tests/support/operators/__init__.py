"""Helpers for operators' commands: the doctor, dead letters, and a check of all messages."""
