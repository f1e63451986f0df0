"""A new broker, as small as one can be: what has to be written for it, and nothing more (`docs/brokers.md`).

Its queues are a table in a file of SQLite (`tables`), so that a move is one transaction. `transport` and `channel` are the adapter,
and `server` is its row in the conformance suite.
"""
