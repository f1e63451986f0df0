"""The processes of a chaos run, and the proxy between them and the broker."""
