"""Watches: dead letters that nobody takes, and the depths of queues."""
