"""Watches: dead letters that nobody takes, and how much waits where."""
