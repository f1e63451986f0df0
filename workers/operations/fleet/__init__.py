"""The workers of the fleet: what each of them holds, and how what a dead one held is given back."""
