"""Bounds: keep queues, dead-letter queues and the outcome log within the limits of the settings."""
