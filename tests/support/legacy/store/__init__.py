"""A shop: orders in Django's database, a warehouse, a bank and a mail server, all by Celery tasks."""
