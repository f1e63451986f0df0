"""Orders: they are placed, charged and thanked for."""
