"""The conformance suite: the same tests must pass on every broker. Brokers declare what they lack."""
