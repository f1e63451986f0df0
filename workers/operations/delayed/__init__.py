"""Changes to messages in the delay store: one message, or many at once."""
