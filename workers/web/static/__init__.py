"""The static files of the page: one style sheet, one script, one icon."""
