"""What an operator asks, and changes."""
