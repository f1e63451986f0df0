"""Words: how numbers, policies, ids and dead letters are written for people."""
