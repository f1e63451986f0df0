"""The smallest possible broker, as an example for `docs/brokers.md`.

Its queues are a table in SQLite (`tables`), so a move is one transaction. `transport` and `channel` are the adapter, and `server`
connects it to the conformance suite.
"""
