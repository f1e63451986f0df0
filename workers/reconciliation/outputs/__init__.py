"""The output of a run: it is written whole or not at all, and can be read again without Spark."""
