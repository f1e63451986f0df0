"""The transitions on kombu's other transports, by kombu's own interface."""
