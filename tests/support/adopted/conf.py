"""The settings of the app, all with Celery's namespace."""

from __future__ import annotations

CELERY_TASK_TRACK_STARTED = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_REDELIVERY = {
    "queues": {
        "#": {"redelivery_delay": 0.1, "max_delivery_attempts": 3, "redelivery_collision_avoidance_factor": 0},
        "plain": {"enabled": False},
    },
    "tasks": {"tests.support.adopted.tasks.off_by_table": {"enabled": False}},
}
