"""Texts for people: numbers, policies, ids and redacted dead letters."""
