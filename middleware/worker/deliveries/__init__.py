"""The deliveries of a worker and how each ends: those that it holds, those that it only observes, those of dead-letter handlers."""
