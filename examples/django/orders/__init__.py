"""Orders: place, charge and thank."""
