"""Dead letters: looked at, chosen, sent back, moved, removed, kept in files."""
