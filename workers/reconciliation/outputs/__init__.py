"""The output of a run: written completely or not at all, and readable without Spark."""
