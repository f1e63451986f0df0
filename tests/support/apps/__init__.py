"""Applications of the workers under test, and a producer."""
