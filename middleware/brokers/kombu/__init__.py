"""The transitions on kombu's other transports, through kombu's own interface."""
