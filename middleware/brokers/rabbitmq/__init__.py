"""RabbitMQ: publish with confirm, record, then acknowledge."""
