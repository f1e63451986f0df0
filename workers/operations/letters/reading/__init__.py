"""Dead letters for somebody who reads: pages, causes, and one letter whole."""
