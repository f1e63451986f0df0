"""Corrections of Celery's pools: for children that die, tasks whose begin is not reported yet, and stops."""
