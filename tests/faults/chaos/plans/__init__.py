"""The plans of the chaos runs: which process dies where, and the page with the hits."""
