"""The Celery app of the trials: tasks that use every feature of Celery, and do what their message says.

A task such as `play` takes *steps*, one for each run; the last step is for all further runs. A step is a verb and its options. Each
run, hook and signal is noted, so that a test can compare two workers.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from celery import Celery, chain, group, signals
from celery.signals import worker_ready
from tenacity import retry_if_result, stop_after_attempt, wait_fixed

from redelivery import Redelivery, redeliver
from tests.support.notes import ready
from tests.support.trials.celery_classes import Asking, Calling, Hooked, Raising
from tests.support.trials.celery_notes import note, runs_of
from tests.support.trials.celery_steps import Expected, perform

if TYPE_CHECKING:
    from collections.abc import Callable

app = Celery("trial", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(json.loads(os.environ.get("SHOP_CONF", "{}")))
app.conf.broker_connection_retry_on_startup = True
app.conf.redelivery = json.loads(os.environ.get("SHOP_SETTINGS", "{}"))
if os.environ.get("SHOP_PLAIN"):
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
else:
    Redelivery(app)


worker_ready.connect(ready)


# signals


@signals.task_prerun.connect
def on_prerun(task_id: str, **_: Any) -> None:
    note(task_id, "task_prerun")


@signals.task_postrun.connect
def on_postrun(task_id: str, state: Any, **_: Any) -> None:
    note(task_id, "task_postrun", state=state)


@signals.task_retry.connect
def on_retry(request: Any, reason: Any = None, **_: Any) -> None:
    note(request.id, "task_retry", exc=getattr(reason, "exc", None))


@signals.task_failure.connect
def on_failure(task_id: str, exception: Any, **_: Any) -> None:
    note(task_id, "task_failure", exc=exception)


@signals.task_success.connect
def on_success(sender: Any, result: Any, **_: Any) -> None:
    note(sender.request.id, "task_success", result=result)


# tasks


def played(self: Any, *steps: Any, key: str = "") -> Any:
    request = self.request
    note(
        request.id,
        "run",
        key=key,
        task=self.name,
        steps=len(steps),
        retries=request.retries,
        redelivered=request.delivery_info["redelivered"],
        routing_key=request.delivery_info["routing_key"],
        priority=request.delivery_info["priority"],
        headers=request.headers or {},
        stamps=request.stamps,
        group=bool(request.group),
        timelimit=request.timelimit,
        shadow=request.shadow,
        correlation_id=request.correlation_id if request.correlation_id != request.id else "its id",
        reply_to=bool(request.reply_to),
        expires=bool(request.expires),
    )
    number = runs_of(request.id) - 1
    verb, options = steps[min(number, len(steps) - 1)]
    return perform(self, verb, options)


def task(name: str, body: Callable[..., Any] = played, **options: Any) -> Any:
    return app.task(body, bind=True, name=f"tests.support.trials.celery_app.{name}", shared=False, **options)


play = task("play")
hooked = task("hooked", base=Hooked)

SOON: dict[str, Any] = {"base": Hooked, "default_retry_delay": 0.1}
auto = task("auto", autoretry_for=(Expected,), max_retries=2, **SOON)
auto_all = task("auto_all", autoretry_for=(Exception,), dont_autoretry_for=(KeyError,), max_retries=2, **SOON)
auto_short = task("auto_short", autoretry_for=(Exception,), max_retries=2, **SOON)  # Celery keeps a call's limit on the task
auto_kwargs = task("auto_kwargs", autoretry_for=(Expected,), retry_kwargs={"max_retries": 1, "countdown": 0.2}, **SOON)
auto_steady = task(
    "auto_steady",
    autoretry_for=(Expected,),
    retry_backoff=True,
    retry_backoff_max=1,
    retry_jitter=False,
    max_retries=2,
    **SOON,
)
auto_jitter = task("auto_jitter", autoretry_for=(Expected,), retry_backoff=1, retry_backoff_max=1, max_retries=2, **SOON)
endless = task("endless", max_retries=None, **SOON)
raising = task("raising", base=Raising)
calling = task("calling", base=Calling)
asking = task("asking", base=Asking)
auto_asking = task("auto_asking", base=Asking, autoretry_for=(Expected,), max_retries=2)
slow = task("slow", base=Hooked, Request="tests.support.trials.celery_classes:Noting", max_retries=0)
requested = task("requested", base=Hooked, Request="tests.support.trials.celery_classes:Noting")
expecting = task("expecting", base=Hooked, throws=(Expected,))
tracked = task("tracked", base=Hooked, track_started=True)
forgotten = task("forgotten", base=Hooked, ignore_result=True)
limited = task("limited", base=Hooked, soft_time_limit=1, time_limit=60)
early = task("early", base=Hooked, acks_late=False)


@app.task(bind=True, name="tests.support.trials.celery_app.polling")
@redeliver(wait=wait_fixed(0.1), stop=stop_after_attempt(2), retry=retry_if_result(lambda answer: answer == "not yet"))
def polling(self: Any, *steps: Any) -> Any:
    """Is delivered again while its result is `not yet`."""
    return played(self, *steps)


@app.task(name="tests.support.trials.celery_app.errback")
def errback(request: Any, exc: Any, traceback: Any) -> None:
    """A new-style error callback: called in the worker, with the request."""
    note(request.id, "errback", exc=exc, traceback=bool(traceback))


@app.task(bind=True, name="tests.support.trials.celery_app.old_errback")
def old_errback(self: Any, task_id: str) -> None:
    """An old-style error callback: published, with the failed task's id."""
    note(task_id, "old_errback", own=self.request.id != task_id)


@app.task(bind=True, name="tests.support.trials.celery_app.add")
def add(self: Any, x: Any, y: Any = 0, *, key: str = "", fails: int = 0, retries: int = 0, dies: str = "") -> Any:
    """The sum, after `fails` failures or `retries` retries; or a death, as a step of `play`."""
    request = self.request
    note(request.id, "run", key=key, task="add", args=[x, y], number=runs_of(request.id), group=bool(request.group))
    if runs_of(request.id) <= fails:
        message = "not yet"
        raise Expected(message)
    if request.retries < retries:
        raise self.retry(countdown=0.1)
    if dies:
        perform(self, *{"fail": ("fail", {"kind": "expected"}), "kill": ("kill", {}), "reject": ("reject", {})}[dies])
    return x + y


@app.task(bind=True, name="tests.support.trials.celery_app.total")
def total(self: Any, values: list[Any], *, key: str = "") -> Any:
    """The body of a chord: a sum."""
    note(self.request.id, "run", key=key, task="total", args=sorted(values))
    return sum(values)


@app.task(bind=True, name="tests.support.trials.celery_app.replaced")
def replaced(self: Any, x: Any, *, by: str, key: str = "", fails: int = 0) -> Any:
    """Is replaced by a task, a chain or a group, after `fails` failures."""
    number = runs_of(self.request.id) + 1
    note(self.request.id, "run", key=key, task="replaced", args=[x, by])
    if number <= fails:
        message = "not yet"
        raise Expected(message)
    first, second = add.s(x, 10, key=key), add.s(y=100, key=key)
    return self.replace({"task": first, "chain": chain(first, second), "group": group(first, add.s(x, 20, key=key))}[by])


@app.task(bind=True, name="tests.support.trials.celery_app.adding")
def adding(self: Any, x: Any, *, key: str = "", fails: int = 0) -> Any:
    """Add a task to its chord, after `fails` failures."""
    number = runs_of(self.request.id) + 1
    note(self.request.id, "run", key=key, task="adding", args=[x])
    if number <= fails:
        message = "not yet"
        raise Expected(message)
    self.add_to_chord(add.s(x, 1000, key=key))
    return x


@app.task(bind=True, name="tests.support.trials.celery_app.linked")
def linked(self: Any, value: Any = None, *, key: str = "") -> Any:
    note(self.request.id, "run", key=key, task="linked", args=[value])
    return value
