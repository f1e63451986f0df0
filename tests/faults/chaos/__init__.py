"""Chaos: a fleet on a private broker whose processes are killed at named boundaries, and the books at the end."""
