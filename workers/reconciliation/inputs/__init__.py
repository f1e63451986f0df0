"""The inputs of a run: the events, the inventory, and the state of the last run."""
