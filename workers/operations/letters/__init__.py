"""Dead letters: list, choose, redrive, move, purge, import and archive them."""
