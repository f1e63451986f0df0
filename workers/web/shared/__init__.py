"""What the screens share: threads with bounded time, and data of the broker that is read once for all users."""
