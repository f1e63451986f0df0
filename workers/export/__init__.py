"""Event files: the exported outcome log, and the commits that name its files."""
