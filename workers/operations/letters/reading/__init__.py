"""Shows dead letters: pages, causes, and one dead letter in full."""
