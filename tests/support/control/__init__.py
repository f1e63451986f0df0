"""Tasks that begin and end when a test says so, on one worker or on each pool."""
