"""The conformance suite: the same test bodies must pass on every broker; differences between brokers are declared."""
