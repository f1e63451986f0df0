"""Helpers of the tests of the books: Spark, the command, and recorded events."""
