"""Dead letters for a reader: pages, causes, and one dead letter in full."""
