"""The output of a run: written whole or not at all, and read again without Spark."""
