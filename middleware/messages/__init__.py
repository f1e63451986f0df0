"""What a message says of itself, and how each step rewrites it. Pure."""
