"""How a worker consumes from RabbitMQ: reading, the prefetch window, the messages that it holds, acknowledgements."""
