"""The stores on Redis and Valkey."""
