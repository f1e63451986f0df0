"""What the screens share: questions to the broker in bounded time, and what is looked at once for everybody."""
