"""The conformance suite: what must be the same on every broker, from the same test bodies; differences are declared."""
