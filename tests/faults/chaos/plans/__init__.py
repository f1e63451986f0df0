"""The plans of the chaos runs: which process dies where, and the page that says what was hit."""
