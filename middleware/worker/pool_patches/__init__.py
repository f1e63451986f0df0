"""What is mended around Celery's pools: children that die, tasks whose begin is not reported yet, and stops."""
