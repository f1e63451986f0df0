"""What the broker holds: the inventory with its deadlines, for the books, and the life of one task."""
