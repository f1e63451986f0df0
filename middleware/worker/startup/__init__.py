"""The start of a worker: what is checked and refused before its first message."""
