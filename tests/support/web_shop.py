"""An app whose operator's page is tested: its broker and settings are the environment's."""

from __future__ import annotations

import json
import os

from celery import Celery

from redelivery import Redelivery

app = Celery("shop", broker=os.environ["WEB_SHOP_BROKER"])
app.conf.task_default_queue = "orders"
app.conf.broker_connection_timeout = 2
Redelivery(app, {"queues": {"#": {"max_delivery_attempts": 3}}, **json.loads(os.environ.get("WEB_SHOP_SETTINGS", "{}"))})
