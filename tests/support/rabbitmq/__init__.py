"""Applications and channels of tests that need RabbitMQ."""
