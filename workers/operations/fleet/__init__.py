"""The workers of the fleet: the messages that each of them holds and runs, and the recovery of a dead worker's messages."""
