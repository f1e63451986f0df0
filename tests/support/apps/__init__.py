"""Applications that workers under test run, and what publishes to them."""
