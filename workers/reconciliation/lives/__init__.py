"""The lives: the fold of events into lives, their verdicts and evidence, and a shorter way for plain lives."""
