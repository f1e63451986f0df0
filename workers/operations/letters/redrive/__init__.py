"""Redrives dead letters, changed or unchanged, if asked with a canary."""
