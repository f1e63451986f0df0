"""The figures: counts of lives and attempts, run times, causes of death, and met deadlines."""
