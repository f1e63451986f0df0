"""The workers of the fleet: the messages that each holds and runs, and the recovery of a dead worker's messages."""
