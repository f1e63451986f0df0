"""The figures: counts of lives and attempts, run times, causes of death, and how many lives were complete in time."""
