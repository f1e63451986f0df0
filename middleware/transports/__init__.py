"""How messages are received, moved and ended, for each kind of broker."""
