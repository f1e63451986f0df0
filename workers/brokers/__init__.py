"""The stores of each kind of broker, as operators' tools ask for them."""
