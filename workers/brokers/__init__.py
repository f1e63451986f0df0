"""The stores of each kind of broker, for operators' tools."""
