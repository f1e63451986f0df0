"""Apps of workers that are stopped, and modules that observe or change Celery inside a worker."""
