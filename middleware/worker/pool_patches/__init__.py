"""What is mended around Celery's pools: children that die, that have begun unheard, and stops."""
