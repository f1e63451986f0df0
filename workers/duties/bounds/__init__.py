"""Bounds: queues, the outcome log and dead-letter queues are kept within what the settings say."""
