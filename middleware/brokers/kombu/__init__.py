"""Whatever else kombu speaks: the transitions, by kombu's own interface."""
