"""The stores of each kind of broker, for the tools for operators."""
