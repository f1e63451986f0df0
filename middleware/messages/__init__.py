"""The contents of a message, and how each step rewrites them. Nothing here talks to a broker."""
