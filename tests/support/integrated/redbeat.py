"""The tests' app with celery-redbeat, whose schedule is in Redis."""

from __future__ import annotations

from celery.schedules import schedule

from tests.support.shop import app

__all__ = ["app"]

app.conf.beat_scheduler = "redbeat.RedBeatScheduler"
app.conf.redbeat_redis_url = str(app.conf.broker_url).replace("redis+socket://", "unix://")
app.conf.beat_max_loop_interval = 0.5
app.conf.beat_schedule = {"tick": {"task": "tests.support.shop.fails", "schedule": schedule(1.0), "args": [1]}}
