"""Changes messages in the delay store, one or many at once."""
