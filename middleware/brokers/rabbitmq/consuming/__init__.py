"""How a worker consumes from RabbitMQ: what it reads, how far its window reaches, what it holds and acknowledges."""
