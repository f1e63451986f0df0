"""The templates of the page."""
