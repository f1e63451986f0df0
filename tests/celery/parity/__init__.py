"""Tests that a worker with redelivery behaves like a plain worker."""
