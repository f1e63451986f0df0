"""A chaos run: what is started, killed, cut and asked for until the end."""
