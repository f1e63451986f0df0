"""The start of a worker: what is looked at and refused before its first message."""
