"""The figures: what is counted of lives and attempts, and how many lives were complete in time."""
