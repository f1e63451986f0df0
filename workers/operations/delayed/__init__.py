"""Changes to what waits in the delay store: one message, or many at once."""
