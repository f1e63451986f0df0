"""Watches over dead letters that nothing consumes, and the depths of queues."""
