"""Workers that are stopped, and what is put into a worker to see or to change parts of Celery."""
