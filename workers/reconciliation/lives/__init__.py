"""The lives: events folded to one row for each life, judged, with the evidence; and plain lives, which need fewer steps."""
