"""The books under test: Spark, the command, and recorded events."""
