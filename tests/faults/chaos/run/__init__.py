"""A chaos run: what is started, killed, cut and asked for until its end."""
