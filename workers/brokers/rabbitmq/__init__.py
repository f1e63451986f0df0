"""The stores on RabbitMQ."""
