"""The processes of a chaos run, and what stands between them and the broker."""
