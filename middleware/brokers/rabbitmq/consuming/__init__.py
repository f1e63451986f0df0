"""How a worker consumes from RabbitMQ: reading, the prefetch window, held messages, acknowledgements."""
