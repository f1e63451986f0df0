"""The command line, split by noun."""
