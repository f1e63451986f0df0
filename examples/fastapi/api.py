"""The web application: it publishes tasks, and shows their state.

It publishes with the worker's app, so each publication is recorded in one step with the message. An application that shares no
code with its workers uses `Celery(broker=…)` with `Redelivery(app)` and `send_task`.
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException
from kombu.exceptions import OperationalError
from tasks import app as celery
from tasks import build

from redelivery.web import asgi_app

__all__ = ["api"]

api = FastAPI()
# The operator's page, with a token as login. An application with its own login gives `user=` instead.
if (token := os.environ.get("REPORTS_PAGE_TOKEN")) is not None:
    api.mount("/redelivery", asgi_app(celery, token=token, allow=["redrive"]))


# Plain functions, which FastAPI runs in a thread: publishing waits for the broker, and must not block the event loop.
@api.post("/reports/{name}", status_code=202)
def order(name: str) -> dict[str, str]:
    """Order a report; 503 if the broker does not accept it."""
    try:
        return {"id": build.delay(name).id}
    except OperationalError as exc:
        raise HTTPException(503, "no reports can be ordered at the moment") from exc


@api.get("/reports/{task_id}")
def look(task_id: str) -> dict[str, str]:
    """Celery's state of a report. RETRY means that it waits for another attempt."""
    result = celery.AsyncResult(task_id)
    return {"state": result.state, "report": str(result.result) if result.ready() else ""}
