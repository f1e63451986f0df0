"""Tests of brokers that kombu alone knows."""
