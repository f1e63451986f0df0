"""The Celery app of the tests. Broker and settings come from the environment; tasks note each run in a file."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog
from celery import Celery
from celery.exceptions import Ignore, Reject, WorkerShutdown
from celery.signals import celeryd_after_setup, task_received, worker_ready
from tenacity import retry_if_result, stop_after_attempt, wait_exponential

from redelivery import DeadLetter, RedeliverAfter, Redelivery, redeliver
from tests.support.notes import note, ready

for library, version in json.loads(os.environ.get("SHOP_VERSIONS", "{}")).items():
    vars(import_module(library))["__version__"] = version
app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(json.loads(os.environ.get("SHOP_CONF", "{}")))
app.conf.broker_connection_retry_on_startup = True
app.conf.redelivery = json.loads(os.environ.get("SHOP_SETTINGS", "{}"))
if not os.environ.get("SHOP_PLAIN"):
    Redelivery(app)


#: The seconds that a task waits for another.
TIMEOUT = 10


@celeryd_after_setup.connect
def be_last(**_: Any) -> None:
    """Report that the worker consumes after the hooks of the modules that extend this one."""
    worker_ready.connect(ready)


@task_received.connect
def received(request: Any, **_: Any) -> None:
    """Block the worker's main process until the task that `follows` names has begun. Note whether it has."""
    if request.name != follows.name:
        return
    until, runs = time.monotonic() + TIMEOUT, Path(os.environ["SHOP_RUNS"])
    runs.touch()
    while not (begun := request.args[0] in runs.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    note(request.id, begun=begun)


@app.task(bind=True)
def ok(self: Any, value: Any = None) -> Any:
    note(self.request.id, attempt=self.request.retries + 1, redelivered=self.request.delivery_info["redelivered"])
    return value


@app.task(bind=True)
def fails(self: Any, times: int = 10**6, message: str = "no") -> str:
    note(self.request.id, attempt=self.request.retries + 1)
    if self.request.retries < times:
        raise RuntimeError(message)
    return "at last"


@app.task(bind=True)
def heads(self: Any) -> None:
    """Notes its headers. Fails at its first run."""
    note(
        self.request.id,
        attempt=self.request.retries + 1,
        headers={name: str(value) for name, value in self.request.headers.items()},
    )
    if not self.request.retries:
        message = "no"
        raise RuntimeError(message)


@app.task
def follows(_: str) -> None:
    """Is received only after another task has begun (`received`)."""


@app.task(bind=True)
def naps(self: Any, seconds: float) -> None:
    note(self.request.id, event="start")
    time.sleep(seconds)
    note(self.request.id, event="end")


@app.task(bind=True)
def waits(self: Any, gate: str) -> None:
    note(self.request.id, event="start")
    while not Path(gate).exists():
        time.sleep(0.02)
    note(self.request.id, event="end")


@app.task(bind=True)
def fails_after(self: Any, seconds: float) -> None:
    note(self.request.id, event="start")
    time.sleep(seconds)
    note(self.request.id, event="end")
    message = "no"
    raise RuntimeError(message)


@app.task(bind=True)
def stalls(self: Any) -> None:
    """Takes an hour at its first delivery, and no time at a redelivery."""
    note(self.request.id)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(3600)


@app.task(bind=True)
def kills(self: Any, times: int = 10**6, *, group: bool = False, gate: str = "") -> None:
    """Kills its process, or its whole worker, `times` times, each as soon as there is a file: `gate` and the number of the run."""
    note(self.request.id)
    runs = sum(1 for line in Path(os.environ["SHOP_RUNS"]).read_text().splitlines() if self.request.id in line)
    while gate and not Path(f"{gate}{runs}").exists():
        time.sleep(0.02)
    if runs <= times:
        (os.killpg(os.getpgid(0), signal.SIGKILL) if group else os.kill(os.getpid(), signal.SIGKILL))


@app.task(bind=True)
def lingers(self: Any, seconds: float) -> None:
    """Closes all files of its process, as at its end. The process ends after `seconds`."""
    note(self.request.id)
    os.closerange(3, 1024)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def raises(self: Any, what: str) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    raise {
        "dead_letter": DeadLetter("card stolen"),
        "reject": Reject("no", requeue=False),
        "requeue": Reject("again", requeue=True),
        "ignore": Ignore(),
        "after": RedeliverAfter(0.3),
        "value": ValueError("bad value"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "shutdown": WorkerShutdown(0),
    }[what]


@app.task(bind=True, max_retries=2)
def retries(self: Any) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    raise self.retry(countdown=0.1)


@app.task(autoretry_for=(KeyError,), retry_backoff=False, default_retry_delay=0.1, max_retries=3)
def autoretries() -> None:
    """Is retried by Celery's `autoretry_for`."""
    note(autoretries.request.id, attempt=autoretries.request.retries + 1)
    key = "x"
    raise KeyError(key)


@app.task
@redeliver(max_delivery_attempts=2, redelivery_delay=0.1)
def decorated() -> None:
    note(decorated.request.id, attempt=decorated.request.retries + 1)
    message = "decorated"
    raise RuntimeError(message)


@app.task(bind=True)
@redeliver(
    wait=wait_exponential(0.1, exp_base=2),
    stop=stop_after_attempt(4),
    retry=retry_if_result(lambda answer: answer == "not yet"),
)
def polls(self: Any, times: int) -> str:
    """Returns `not yet` `times` times."""
    note(self.request.id, attempt=self.request.retries + 1)
    return "not yet" if self.request.retries < times else "ready"


@app.task(bind=True, acks_late=False)
def early(self: Any, *, fail: bool = False) -> None:
    note(self.request.id, attempt=self.request.retries + 1)
    if fail:
        message = "early"
        raise RuntimeError(message)


@app.task
def logs() -> None:
    """Logs with structlog, as an application does."""
    structlog.get_logger().info("written by a task")


SHARED = RuntimeError("shared")


@app.task(bind=True)
def shares(self: Any) -> None:
    """Raises the same object in each run."""
    note(self.request.id, attempt=self.request.retries + 1)
    raise SHARED


@app.task(bind=True, acks_late=False)
def early_does(self: Any, what: str) -> None:
    """Is acknowledged before it runs. Then it does `what`."""
    note(self.request.id, attempt=self.request.retries + 1)
    if what == "nap":
        time.sleep(3600)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "publish":
        self.retry(kwargs={"what": "nothing"}, args=(), countdown=0)
    elif what != "nothing":
        raise {
            "reject": Reject("no", requeue=False),
            "requeue": Reject("again", requeue=True),
            "ignore": Ignore(),
            "exit": SystemExit(3),
        }[what]
