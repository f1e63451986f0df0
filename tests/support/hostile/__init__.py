"""Hostile messages, tasks that end their worker, and tasks that lie."""
