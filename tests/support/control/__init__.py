"""Tasks whose begin and end a test controls, on one worker or on each pool."""
