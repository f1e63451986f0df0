"""The books on the command line: the outcome log, the inventory, and what a run of `reconcile` found."""
