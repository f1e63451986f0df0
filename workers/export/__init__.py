"""Event files: the outcome log, exported, and what was committed of it."""
