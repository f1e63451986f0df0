"""What a run reads: the events, the inventory, and the state that the run before has left."""
